"""A study as its YAML file defines it, and the cells it consists of. The format is described in ``docs/study.md``."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sb3_ora.checks import LARGEST_SEED, check_choice, check_integer
from sb3_ora.study.options import read_options
from sb3_ora.zoo.files import default_hyperparameters

#: Where studies are run unless told otherwise
OUTPUT = Path("logs/study")
BASES = ("zoo", "none")
LAYER_KEYS = ("base", "hyperparams")
EVALUATION = {"freq": 5000, "episodes": 10, "final_episodes": 100, "references": {}}


@dataclass(frozen=True)
class Method:
    """
    What a study compares.

    :param label: name of its folder, and of its style in figures
    :param name: name in figures and tables
    :param algo: name of the algorithm in rl-zoo3
    :param base: "zoo" to lay the hyperparameters over those of the algorithm's file, "none" if they are complete
    :param hyperparams: hyperparameters as in a YAML file of rl-zoo3
    """

    label: str
    name: str
    algo: str
    base: str
    hyperparams: dict[str, Any]


@dataclass(frozen=True)
class Environment:
    """
    Where a study compares.

    :param env_id: Gymnasium's id
    :param env_kwargs: its arguments in training and evaluation
    :param tests: name of each final test, with the arguments that differ there
    """

    env_id: str
    env_kwargs: dict[str, Any]
    tests: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Cell:
    """One training with its evaluation. Everything but ``root`` and ``source`` decides its numbers."""

    method: Method
    environment: Environment
    seed: int
    evaluation: dict[str, Any]
    device: str
    packages: list[str]
    root: Path  #: folder of the study
    source: tuple[str, str]  #: YAML file and configuration

    @property
    def folder(self) -> Path:
        """Where rl-zoo3 would put run number ``seed`` with the log folder ``<study>/<label>``."""
        run = f"{self.environment.env_id.replace('/', '-')}_{self.seed}"
        return self.root / self.method.label / self.method.algo / run

    @property
    def name(self) -> str:
        """Its folder within the study."""
        return self.folder.relative_to(self.root).as_posix()

    @property
    def command(self) -> list[str]:
        """What runs it in a process of its own."""
        path, config = self.source
        where = ["--config", config, "--output", str(self.root.parent)]
        which = ["--label", self.method.label, "--env", self.environment.env_id, "--seed", str(self.seed)]
        return [sys.executable, "-m", "sb3_ora.study", "cell", path, *where, *which]

    @property
    def shell_line(self) -> str:
        """The command as a line for a shell."""
        return shlex.join(self.command)

    def settings(self) -> dict[str, Any]:
        """
        :return: what decides its numbers, as plain values
        """
        values = asdict(self)
        for name in ("root", "source"):
            del values[name]
        del values["method"]["name"]  # may be rephrased
        if self.method.base == "zoo":
            values["zoo"] = default_hyperparameters(self.method.algo, self.environment.env_id)
        return values


@dataclass(frozen=True)
class Study:
    """
    A study in one of its configurations.

    :param path: YAML file
    :param config: name of the configuration
    :param root: folder of its cells
    :param title: for figures
    :param environments: where it compares
    :param methods: what it compares
    :param seeds: seeds of each
    :param evaluation: protocol, see ``EVALUATION``
    :param device: torch device
    :param packages: modules to import for their environments
    :param report: what the report shows
    """

    path: Path
    config: str
    root: Path
    title: str
    environments: list[Environment]
    methods: list[Method]
    seeds: list[int]
    evaluation: dict[str, Any]
    device: str
    packages: list[str]
    report: dict[str, Any] = field(default_factory=dict)

    def cells(self, only: Collection[str] = ()) -> list[Cell]:
        """
        :param only: labels, algorithms and environments to keep; all methods where it names none, all environments likewise
        :return: the cells, seed by seed, so that the first ones already compare all methods
        :raises ValueError: if one of ``only`` is in no method, and no environment
        """
        names = {name for method in self.methods for name in (method.label, method.algo)}
        env_ids = {environment.env_id for environment in self.environments}
        for name in only:
            check_choice("--only", name, [*sorted(names), *sorted(env_ids)])
        wanted, wanted_envs = names & {*only} or names, env_ids & {*only} or env_ids
        methods = [method for method in self.methods if {method.label, method.algo} & wanted]
        environments = [environment for environment in self.environments if environment.env_id in wanted_envs]
        source = (str(self.path), self.config)
        return [
            Cell(method, environment, seed, self.evaluation, self.device, self.packages, self.root, source)
            for seed in self.seeds
            for environment in environments
            for method in methods
        ]


class _OnceEach(yaml.SafeLoader):
    """Refuses keys that are given twice, of which YAML would drop the first without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is there twice", node.start_mark)
        return super().construct_mapping(node, deep)


def load_study(
    path: str | Path, config: str = "tuned", output: str | Path | None = None, seeds: int | list[int] | None = None
) -> Study:
    """
    :param path: YAML file
    :param config: name of the configuration
    :param output: folder in which the study has its folder ``<name of the file>-<configuration>``
    :param seeds: how many seeds, or which, instead of the file's
    :return: the study
    :raises ValueError: if the file says something that cannot be meant
    :raises FileNotFoundError: if there is no such file
    """
    typed, path = str(path), Path(path).absolute()
    if not path.is_file():
        there = ", ".join(sorted(file.name for file in path.parent.glob("*.yml"))) or "no *.yml"
        raise FileNotFoundError(f"no file {typed!r}; its folder has {there}")
    try:
        content = yaml.load(path.read_text(), _OnceEach)
    except yaml.YAMLError as error:
        raise ValueError(f"{path.name} is no YAML: {error}") from error
    _check_keys(str(path.name), content, Study.__dataclass_fields__.keys() - {"path", "config", "root"} | {"configs"})
    for name in ("environments", "methods", "configs"):
        if not content.get(name):
            raise ValueError(f"{path.name} must have {name}")
        if not isinstance(content[name], Mapping):
            raise ValueError(f"{name} must be a mapping, got {content[name]!r}")
    configs = {name: given or {} for name, given in content["configs"].items()}
    check_choice("config", config, configs)
    methods = {name: _methods(content["methods"], name, configs) for name in configs}  # all, to find every fault
    evaluation = content.get("evaluation") or {}
    _check_keys("evaluation", evaluation, EVALUATION)
    for name in ("freq", "episodes", "final_episodes"):
        check_integer(f"evaluation.{name}", evaluation.get(name, EVALUATION[name]))
    if not isinstance(evaluation.get("references", {}), Mapping):
        raise ValueError(f"evaluation.references must be a mapping, got {evaluation['references']!r}")
    study = Study(
        path=path,
        config=config,
        root=Path(output or OUTPUT).absolute() / f"{path.stem}-{config}",
        title=content.get("title", path.stem),
        environments=[_environment(name, given or {}) for name, given in content["environments"].items()],
        methods=methods[config],
        seeds=_seeds(content.get("seeds", 1) if seeds is None else seeds),
        evaluation={**EVALUATION, **evaluation},
        device=content.get("device", "cpu"),
        packages=content.get("packages") or [],
        report=content.get("report") or {},
    )
    read_options(study)  # not only after all cells have run
    return study


def _check_mapping(where: str, given: Any) -> None:
    if not isinstance(given, Mapping):
        raise ValueError(f"{where} must be a mapping, got {given!r}")


def _check_keys(where: str, given: Any, allowed: Iterable[str]) -> None:
    _check_mapping(where, given)
    for key in given:
        check_choice(f"each key of {where}", key, sorted(allowed))


def _seeds(given: Any) -> list[int]:
    """Ten seeds are 1 ... 10: with 0, rl-zoo3's ``--exp-id`` could not name the run."""
    if isinstance(given, list):
        seeds = [check_integer("each seed", seed, 0, LARGEST_SEED) for seed in given]
        if not seeds:
            raise ValueError("seeds must be at least one, got []")
        if len(set(seeds)) < len(seeds):
            raise ValueError(f"seeds must differ, got {seeds}")
        return seeds
    return list(range(1, check_integer("seeds", given) + 1))


def _environment(env_id: str, given: Mapping[str, Any]) -> Environment:
    _check_keys(f"environments.{env_id}", given, ("env_kwargs", "tests"))
    env_kwargs = given.get("env_kwargs") or {}
    _check_mapping(f"environments.{env_id}.env_kwargs", env_kwargs)
    _check_mapping(f"environments.{env_id}.tests", given.get("tests") or {})
    for name, kwargs in (given.get("tests") or {}).items():
        _check_mapping(f"environments.{env_id}.tests.{name}", kwargs or {})
    tests = {str(name): {**env_kwargs, **(kwargs or {})} for name, kwargs in (given.get("tests") or {"test": {}}).items()}
    return Environment(env_id, env_kwargs, tests)


def _methods(given: Mapping[str, Any], config: str, configs: Mapping[str, Any]) -> list[Method]:
    chosen = configs[config]
    _check_keys(f"configs.{config}", chosen, (*LAYER_KEYS, "algorithms"))
    algorithms = chosen.get("algorithms") or {}
    _check_mapping(f"configs.{config}.algorithms", algorithms)
    known = sorted({str(method["algo"]) for method in given.values() if isinstance(method, Mapping) and "algo" in method})
    for algo, layer in algorithms.items():
        check_choice(f"each key of configs.{config}.algorithms", algo, known)
        _check_keys(f"configs.{config}.algorithms.{algo}", layer, LAYER_KEYS)
    methods = []
    for label, method in given.items():
        _check_keys(f"methods.{label}", method, ("name", "algo", *LAYER_KEYS, *configs))
        _check_keys(f"methods.{label}.{config}", method.get(config) or {}, LAYER_KEYS)
        if not isinstance(method.get("algo"), str):
            raise ValueError(f"methods.{label} must have algo, a name, got {method.get('algo')!r}")
        layers = [chosen, algorithms.get(method.get("algo")) or {}, method, method.get(config) or {}]
        methods.append(_method(str(label), method, layers))
    return methods


def _method(label: str, given: Mapping[str, Any], layers: Iterable[Mapping[str, Any]]) -> Method:
    if not re.fullmatch(r"[\w.+-]+", label) or re.match("report(-|$)", label) or not label.strip("."):
        raise ValueError(f"each label of methods must be a name of a folder other than 'report' and 'report-*', got {label!r}")
    base: str = "zoo"
    hyperparams: dict[str, Any] = {}
    for layer in layers:
        base = check_choice("base", layer.get("base", base), BASES)
        _check_mapping(f"hyperparams for methods.{label}", layer.get("hyperparams") or {})
        hyperparams = _lay_over(hyperparams, layer.get("hyperparams") or {})
    if "env_kwargs" in hyperparams:
        raise ValueError(
            f"hyperparams for methods.{label} must not hold env_kwargs: give them to the environment, and its tests"
        )
    return Method(label, given.get("name", label), given["algo"], base, hyperparams)


def _lay_over(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Later values win; ``policy_kwargs`` that are mappings are merged."""
    merged = {**below, **above}
    parts = [layer.get("policy_kwargs") for layer in (below, above)]
    if all(isinstance(part, Mapping) for part in parts):
        merged["policy_kwargs"] = {**parts[0], **parts[1]}  # type: ignore[dict-item]
    return merged
