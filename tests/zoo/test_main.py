import sys

import gymnasium as gym
import pytest

from sb3_ora.zoo.__main__ import SCRIPTS, main

USAGE = "usage: python -m sb3_ora.zoo {train,enjoy,plot_train,all_plots,plot_from_file,record_video}"


@pytest.mark.parametrize(
    "arguments, reason", [([], "no script given"), (["trian", "--algo", "iqn"], "unknown script 'trian'")]
)
def test_wrong_word_gets_a_usage_line(capsys, arguments, reason):
    with pytest.raises(SystemExit) as error:
        main(arguments)
    captured = capsys.readouterr()
    assert error.value.code == 2 and captured.out == ""
    assert captured.err.startswith(USAGE) and captured.err.endswith(f"error: {reason}\n")
    assert captured.err.count("\n") == 3


def test_help(capsys):
    main(["--help"])
    assert capsys.readouterr().out.startswith(USAGE)


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_get_their_arguments(monkeypatch, capsys, name):
    monkeypatch.setattr(sys, "argv", ["zoo", name, "--help"])
    with pytest.raises(SystemExit) as stop:
        main(sys.argv[1:])
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith(("usage: " + SCRIPTS[name].split(".")[-1] + ".py", "usage: Gather results"))


def test_errors_of_rl_zoo3_pass_through(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["zoo"])
    with pytest.raises(ValueError, match=r"CartPole-v9 not found in gym registry, you maybe meant CartPole-v1"):
        main(["train", "--algo", "ora_iqn", "--env", "CartPole-v9"])


def test_an_environment_of_an_extra_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["zoo"])
    monkeypatch.setattr("sb3_ora.zoo.extras.find_spec", lambda name: None)
    monkeypatch.delitem(gym.envs.registry, "ALE/Pong-v5", raising=False)
    with pytest.raises(
        ValueError, match=r"^ALE/Pong-v5 needs the extra \[atari\]: pip install -c constraints.txt '.\[atari\]'$"
    ):
        main(["train", "--algo", "ora_iqn", "--env", "ALE/Pong-v5"])
