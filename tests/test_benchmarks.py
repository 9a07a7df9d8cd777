import re
import sys

import pytest
import torch as th

from benchmarks.__main__ import main


@pytest.mark.slow
def test_quick_benchmark_prints_a_line_for_each_learner(monkeypatch, capsys):
    threads = th.get_num_threads()
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--quick", "--part", "learners"])
    main()
    th.set_num_threads(threads)
    lines = capsys.readouterr().out.splitlines()[1:]
    rows = [re.fullmatch(r"(\w+) +(\d+) us +([\d.]+) x +(\d+) us +([\d.]+) x", line) for line in lines]
    assert [row[1] for row in rows] == ["DQN", "QRDQN", "IQN", "ORAIQN"]
    assert rows[0].group(3, 5) == ("1.00", "1.00")
    # An environment step contains a gradient step
    assert all(int(row[4]) > 0.5 * int(row[2]) > 0 for row in rows)


def test_quick_benchmark_of_environments(monkeypatch, capsys):
    threads = th.get_num_threads()
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--quick", "--part", "environments"])
    main()
    th.set_num_threads(threads)
    header, *lines = capsys.readouterr().out.splitlines()
    rows = [re.fullmatch(r"(\S.*?) +([\d,]+) +([\d.]+) x", line) for line in lines]
    rates = {row[1]: int(row[2].replace(",", "")) for row in rows}
    assert "steps per second" in header
    assert rows[0].group(1, 3) == ("CartPole-v1", "1.00")
    assert rates["NanoDrone-v0, 64 as arrays, no resets"] > rates["NanoDrone-v0"] > 0
    assert len(rates) >= 6
