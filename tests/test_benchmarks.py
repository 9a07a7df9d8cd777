import csv
import os
import time
from statistics import median

import numpy as np
import pytest
import torch as th
from scipy.stats import binom

from benchmarks import against_peers, curves, gpu, learners, measure, peers, profiles
from benchmarks.__main__ import PARTS, main
from benchmarks.learners import as_learner, make_ours
from benchmarks.measure import Times
from benchmarks.report import machine, make_row, outside_interval, plot
from benchmarks.work import Learner
from sb3_ora import IQN
from sb3_ora.iqn.cuda_graphs import RecordedUpdates


@pytest.fixture(autouse=True)
def restore_threads():
    threads = th.get_num_threads()
    yield
    th.set_num_threads(threads)


@pytest.fixture
def short_warm_up(monkeypatch):
    for module in (learners, curves):
        monkeypatch.setattr(module, "WARM_UP", 100)


def run_part(part, folder, *arguments):
    """Rows of the CSV file that a quick run of a part writes."""
    main(["--quick", "--part", part, "--results", str(folder), *arguments])
    with (folder / f"{part}.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert {row["machine"] for row in rows} == {machine()}
    assert all(float(row["low"]) <= float(row["median"]) <= float(row["high"]) for row in rows)
    assert (folder / f"{part}.png").read_bytes().startswith(b"\x89PNG")
    return rows


# How times are taken


def test_rounds_alternate_and_the_first_does_not_count():
    calls = []
    turns = {name: lambda name=name: calls.append(name) or len(calls) for name in "abc"}
    results = measure.rounds_of(turns, 2)
    assert "".join(calls) == "cbaabccba"
    assert results == [{"a": 4, "b": 5, "c": 6}, {"c": 7, "b": 8, "a": 9}]


def test_time_per_step_is_that_of_the_work():
    def work():
        sum(range(50_000))

    one = median(measure.timed(work, 1)[1] for _ in range(15))
    five = median(measure.timed(lambda: [work() for _ in range(5)], 5)[1] for _ in range(15))
    per_call = median(measure.timed(lambda: [work() for _ in range(5)], 1)[1] for _ in range(15))
    assert 0.5 < five / one < 2 and 2.5 < per_call / one < 10


def test_learners_share_the_work(short_warm_up):
    for name, make in measure.learner_cases().items():
        learner = make(0)
        model = learner.gradient.args[0]
        learner.warm_up()
        assert (model.num_timesteps, model._n_updates) == (100, 0), name
        learner.steps(3)
        learner.gradient()
        assert (model.num_timesteps, model._n_updates, model.exploration_rate) == (103, 4, 0.1), name
        group = model.policy.optimizer.param_groups[0]
        assert (group["fused"], group["lr"]) == (name.endswith("fused"), 1e-3), name


def test_network_is_the_common_one():
    def shapes(*arguments):
        net = make_ours(*arguments).quantile_net
        return [tuple(p.shape) for p in net.parameters() if p.dim() == 2]

    assert shapes() == [(128, 4), (128, 128), (128, 64), (128, 128), (2, 128)]
    assert shapes(10) == [(128, 4), (128, 128), (128, 64), (640, 128), (20, 64)]


def test_quotients_are_taken_within_each_round():
    rounds = [{"IQN, plain": Times(2.0 * slow, 0, 0), "SB3 DQN, plain": Times(slow, 0, 0)} for slow in (1.0, 50.0, 3.0)]
    (row,) = against_peers.quotients(rounds)
    assert (row.case, row.median, row.low, row.high) == ("IQN / SB3 DQN, plain Adam", 2, 2, 2)
    both = {f"{name}, {adam}": Times(1.0, 0, 0) for name in ("IQN", "SB3 DQN") for adam in ("plain", "fused")}
    assert [row.case.split(", ")[-1] for row in against_peers.quotients([both])] == [
        "plain Adam",
        "fused Adam",
        "default Adam",
    ]


def test_peers_that_are_not_installed_are_left_out(monkeypatch):
    monkeypatch.setitem(peers.MODULES, "pfrl", ("no_such_module",))
    monkeypatch.setitem(peers.MODULES, "tianshou", ("gymnasium", "no_such_module"))
    assert not peers.installed("pfrl") and not peers.installed("tianshou")
    assert peers.peer_cases() == {}
    monkeypatch.setitem(peers.MODULES, "tianshou", ("gymnasium",))
    assert list(peers.peer_cases()) == ["tianshou IQN, plain", "tianshou IQN, fused"]


@pytest.mark.peers
@pytest.mark.parametrize("name", list(peers.peer_cases()))
def test_peers_take_a_gradient_step_for_each_step(name):
    learner = measure.make_learner(name, 0)
    learner.steps(3)
    learner.gradient()


def test_a_process_that_fails_is_reported():
    with pytest.raises(RuntimeError, match="process of 'no such learner' ended early"):
        measure.measure_rounds(["no such learner"], measure.Sizes(1, 1, 0, 1, 1))


@pytest.mark.parametrize("n", [1, 5, 6, 8, 24, 120])
def test_interval_of_the_median_has_its_coverage(n):
    outside = outside_interval(n)
    # The median is left of the interval where at most so many values are below it
    coverage = 1 - 2 * binom.cdf(outside, n, 0.5)
    assert coverage >= 0.95 or outside == 0
    assert 1 - 2 * binom.cdf(outside + 1, n, 0.5) < 0.95


def test_row_orders_its_values():
    row = make_row("q", "c", "x", [5.0, 1.0, 4.0, 2.0, 3.0, 9.0, 8.0, 7.0, 6.0, 10.0])
    assert (row.low, row.median_low, row.median, row.median_high, row.high, row.rounds) == (1, 2, 5.5, 9, 10, 10)


# Adaptation


def test_table_is_full_and_the_aged_learner_old(short_warm_up):
    model = make_ours(2, head_width=4, max_keys=500)
    as_learner(model).warm_up()
    curves.age(model)
    table = model.policy.risk.table
    assert len(table) == 500 and (table.column("loss_count") == curves.AGE).all()
    assert model.replay_buffer.size() == 50_000 and np.abs(model.replay_buffer.observations[-1]).sum() > 0
    as_learner(model).steps(3)
    assert len(table) == 500 and model.num_timesteps == curves.AGE + 3
    assert table.keys()[-1] >= 0  # a pair that CartPole visited has taken the place of one that filled the table


# Whole parts


def test_peers_part(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(peers.MODULES, "pfrl", ("no_such_module",))
    monkeypatch.setattr(against_peers, "all_cases", lambda: ["SB3 DQN, plain", "IQN, plain"])
    rows = run_part("peers", tmp_path)
    assert [row["case"] for row in rows if row["quantity"] == "gradient step"] == ["SB3 DQN, plain", "IQN, plain"]
    assert [row["median"] for row in rows if row["case"] == "SB3 DQN, plain"] == ["1"] * 3
    quotient = next(row for row in rows if row["case"] == "IQN / SB3 DQN, plain Adam")
    step = next(row for row in rows if row["case"] == "IQN, plain")
    assert quotient["median"] == step["median"]
    assert "pfrl is not installed and is left out" in capsys.readouterr().out


@pytest.mark.slow
def test_memory_part(tmp_path):
    rows = run_part("memory", tmp_path)
    alone, iqn = (float(row["median"]) for row in rows)
    assert 50 < alone < iqn < 5000


def test_curves_part(tmp_path, monkeypatch, short_warm_up):
    monkeypatch.setattr(curves, "BATCHES", (1, 64, 2048))
    monkeypatch.setattr(curves, "HEADS", (10, 64))
    rows = run_part("curves", tmp_path)
    values = {(row["quantity"], row["case"], row["x"]): float(row["median"]) for row in rows}
    assert values["number of heads", "IQN and ORAIQN", "10"] == values["batch size", "IQN", "64"] == 1
    assert values["batch size", "ORAIQN(10)", "1"] < 1
    assert ("number of environments", "IQN", "4") in values


def test_adaptation_part(tmp_path, short_warm_up):
    rows = run_part("adaptation", tmp_path)
    cases = ["grid of 19 levels", "grid of 91 levels", "table full with 100 keys", "as after 1000000 steps"]
    assert [row["case"] for row in rows] == cases
    assert [len(model.adapter.grid) for model in list(curves.adaptation_models(True, 0).values())[1:3]] == [19, 91]


def test_environments_part(tmp_path):
    values = {row["case"]: float(row["median"]) for row in run_part("environments", tmp_path)}
    assert values["CartPole-v1"] == 1
    assert values["NanoDrone-v0, 64 as arrays, no resets"] > values["NanoDrone-v0"] > 0
    assert {f"Knapsack-v{version}" for version in range(4)} < values.keys()


def test_profile_part(tmp_path, short_warm_up):
    rows = run_part("profile", tmp_path)
    steps = [f"{kind} step of {name}" for name in ("IQN", "ORAIQN(10)") for kind in ("gradient", "environment")]
    for step in steps:
        shares = [float(row["median"]) for row in rows if row["quantity"] == f"{step}, torch's operations"]
        assert sum(shares) == pytest.approx(100, abs=0.5) and min(shares) >= 0
    for name in ("IQN", "ORAIQN(10)"):
        shares = {row["case"]: float(row["median"]) for row in rows if row["quantity"] == f"step of {name}, stages"}
        assert sum(shares.values()) == pytest.approx(100, abs=0.5) and min(shares.values()) >= 0
        assert {"by_hand.differentiate", "adam.step", "outside of these"} <= shares.keys()
        assert ("FTPLAdapter._compare" in shares) == (name != "IQN")
    names = {row["case"] for row in rows if row["quantity"].startswith("gradient step of IQN, Python")}
    assert "by_hand.differentiate" in names


def test_gpu_part_on_the_cpu(tmp_path):
    rows = run_part("gpu", tmp_path, "--device", "cpu")
    cases = ["QR-DQN(200)", "IQN", "IQN, no graph", "ORAIQN(2)", "ORAIQN(2), no graph"]
    units = ["ms"] * 5 + ["x of IQN"] * 5 + ["1/s"] * 5
    assert [(row["case"], row["unit"]) for row in rows] == list(zip(cases * 3, units, strict=True))
    assert all(float(row["median"]) > 0 for row in rows)


@pytest.mark.skipif(th.cuda.is_available(), reason="there is a card")
def test_gpu_part_needs_a_card(capsys):
    with pytest.raises(SystemExit):
        main(["--part", "gpu"])
    assert "torch finds no card here" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.skipif(not th.cuda.is_available(), reason="needs a card")
def test_gpu_part_names_the_card(tmp_path):
    main(["--quick", "--part", "gpu", "--device", "cuda", "--results", str(tmp_path)])
    assert th.cuda.get_device_name() in (tmp_path / "gpu.csv").read_text()


def test_quick_runs_save_nothing_unless_told(monkeypatch, tmp_path):
    monkeypatch.setitem(PARTS, "curves", lambda quick: [make_row("heads", "IQN", "x", [1.0], x=1)])
    monkeypatch.setattr("benchmarks.__main__.RESULTS", tmp_path)
    main(["--quick", "--part", "curves"])
    assert not list(tmp_path.iterdir())
    main(["--part", "curves"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curves.csv", "curves.png"]


def test_plot_is_optional(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    assert plot("curves", [make_row("heads", "IQN", "x", [1.0], x=1)], tmp_path) is None


def sleep(n):
    time.sleep(0.03 * n)


def test_waiting_is_on_the_clock_only():
    times = measure.take_turn(Learner(None, sleep, lambda: sleep(1)), measure.Sizes(1, 1, 0, 3, 2))
    assert times.step < 10 < 29 < times.clock and times.gradient < 10


def test_turns_are_in_processor_time():
    assert all(turn["sleep"] < 10 for turn in measure.take_turns({"sleep": sleep}, 2, 2))


def test_turns_settle_before_they_are_timed(monkeypatch):
    steps, timed = [], measure.timed
    monkeypatch.setattr(measure, "timed", lambda run, n: (steps.append("timed"), timed(run, n))[1])
    measure.take_turns({"one": steps.append}, 7, 1)
    assert steps == [measure.SETTLE, "timed", 7] * 2


def test_steps_per_second_count_all_environments(monkeypatch):
    monkeypatch.setattr(gpu, "make_models", lambda *_: {"IQN": None})
    monkeypatch.setattr(gpu, "gradient_steps", lambda *_: None)
    monkeypatch.setattr(gpu, "device_ms", lambda run, model, n, device: 4.0)
    rows = {row.unit: row.median for row in gpu.run_gpu(True, "cpu")}
    assert rows == {"ms": 4, "x of IQN": 1, "1/s": 1000 / 4 * gpu.QUICK.n_envs}


def test_the_network_for_games_is_that_of_the_iqn_paper():
    frames = gpu.Frames(84)
    assert gpu.Convolutions(frames.observation_space).features_dim == 3136
    settings = {"features_extractor_class": gpu.Convolutions, "head_arch": [512]}
    net = IQN("CnnPolicy", frames, buffer_size=10, policy_kwargs=settings).quantile_net
    weights = [tuple(p.shape) for p in net.parameters() if p.ndim == 2]
    assert weights == [(3136, 64), (512, 3136), (6, 512)]


def test_a_learner_without_graphs_is_no_result():
    models = gpu.make_models(None, "cpu", gpu.QUICK)
    gpu.check_graphs(models)  # on the CPU none has any
    models["IQN"]._recorded_updates = RecordedUpdates(models["IQN"])
    with pytest.raises(RuntimeError, match="IQN has not recorded"):
        gpu.check_graphs(models)


def test_no_graph_is_without_graphs():
    models = gpu.make_models(None, "cpu", gpu.QUICK)
    for name, model in models.items():
        if name != gpu.BASE:
            assert model.cuda_graphs != name.endswith("no graph")


def test_adaptation_is_what_it_adds(monkeypatch):
    times = [{"Composite": 2.0, "other": 3.0}] * 3
    monkeypatch.setattr(curves, "in_new_process", lambda function, quick, seed: times)
    (row,) = curves.run_adaptation(False)
    assert (row.case, row.median, row.ms, row.rounds) == ("other", 50, 3, 3 * curves.ADAPTATION_PROCESSES)


def memory_of_an_array():
    before = measure.peak_memory()
    np.ones(64 * 2**17)  # 64 MiB
    return measure.peak_memory() - before


def test_peak_memory():
    assert 60 < measure.in_new_process(memory_of_an_array) < 90


def test_a_new_process():
    assert measure.in_new_process(os.getpid) != os.getpid()
    with pytest.raises(ZeroDivisionError):
        measure.in_new_process(divmod, 1, 0)


def test_own_times(monkeypatch):
    class Worker:
        now = 0

        def outer(self):
            Worker.now += 2
            self.inner()
            self.inner()
            Worker.now += 3

        def inner(self):
            Worker.now += 10

    worker = Worker()
    monkeypatch.setattr(profiles.time, "perf_counter", lambda: Worker.now)
    with profiles.own_times([(worker, "outer"), (worker, "inner")]) as times:
        worker.outer()
    assert times == {"Worker.outer": 5, "Worker.inner": 20}
    assert not vars(worker)


def test_shares_of_operations():
    x = th.rand(500, 500)
    rows = profiles.operations("product", lambda: [x @ x for _ in range(10)], 10)
    product = sum(row.median for row in rows if "mm" in row.case)
    assert 60 < product < 101
