"""How good a checkpoint or a model is: `python -m recipe.async_dapo_lab.evaluate RUN_DIR|MODEL [--data FILE]`.

It starts the run's own engines, agent loops and reward function, validates once, and writes nothing into the run's
checkpoints. `--ask QUESTION` prints an answer instead. Hydra overrides follow after `--`: they come last, and a model
that this recipe has not exported needs those of data, reward and engine.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ...async_dapo.config.values import ConfigError
from ...async_dapo.record.checkpoint_folder import step_of
from ...async_dapo.record.run_files import set_aside
from ...async_dapo.runtime.logs import quiet
from .. import train
from ..command_line import end_without, path
from ..export import export
from ..overrides import compose_overrides
from ..quickstart.activation import cpu_environment, run_environment
from ..quickstart.overrides import quoted
from ..quickstart.supervision import RayFolder, TrainingProcess, exit_on_signals
from ..quickstart.train_log import TrainLog
from ..run_files import STEPS_FILE, read_lines
from .ask import MARK, Question
from .figures import KEPT_FILE, Answer, as_rows, by_source, figures, joined, read_dump, table
from .subject import Subject

_CODE_PATH = Path(__file__).resolve().parents[__package__.count(".") + 1]
_RAY_FOLDER = "ray_kwargs.ray_init._temp_dir"
_SHOWN_ROWS = 12
_LOG_TAIL_LINES = 40


def main(arguments: Sequence[str] | None = None) -> None:
    given = list(sys.argv[1:] if arguments is None else arguments)
    own, overrides = (given[: given.index("--")], given[given.index("--") + 1 :]) if "--" in given else (given, [])
    parser = argparse.ArgumentParser(
        prog="evaluate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "subject", type=os.path.expanduser, metavar="RUN_DIR|MODEL", help="a run, a checkpoint, an exported model"
    )
    parser.add_argument("--step", type=int, metavar="N", help="of a run [its newest complete checkpoint]")
    parser.add_argument("--data", type=path, nargs="+", default=[], metavar="FILE", help="[the run's data.val_files]")
    parser.add_argument("--samples", type=int, metavar="K", help="answers to a prompt [as in the run's validation]")
    parser.add_argument("--output", type=path, metavar="FILE", help="the result as JSON [in the subject's folder]")
    parser.add_argument("--ask", metavar="QUESTION", help="print the model's answer, and evaluate nothing")
    parsed = parser.parse_args(own)
    if parsed.samples is not None and parsed.samples < 1:
        parser.error(f"--samples={parsed.samples}: must be at least 1")
    exit_on_signals()
    try:
        subject = Subject.named(parsed.subject, step=parsed.step, overrides=overrides)
        if parsed.ask is not None:
            for text in ask(subject, parsed.ask, samples=parsed.samples or 1):
                _say(text)
            return
        end_without("record", otherwise="ask it: --ask QUESTION")
        output = parsed.output or _default_output(subject)
        if not os.access(output.parent, os.W_OK) or output.is_dir():
            raise ConfigError("--output", output, "must be a file in a folder that exists and can be written")
        result = evaluate(subject, data=parsed.data, samples=parsed.samples)
        if parsed.output is None:
            set_aside(output)  # of other data, or other samples
        output.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except ConfigError as error:
        sys.exit(f"async_dapo: {error}")
    _say(_in_words(result))
    _say(f"{output}: all answers")


def evaluate(subject: Subject, *, data: Sequence[Path], samples: int | None) -> dict[str, Any]:
    """Validate once with the training's own stack.

    Raises:
        ConfigError: for what the overrides or the data lack.
        SystemExit: where the run has failed; its log's end has been shown.
    """
    for file in data:
        if not file.is_file():
            raise ConfigError("--data", file, "no such file; prepare one as docs/your_own.md says")
    with RayFolder() as ray:
        folder = ray.path / "evaluation"
        folder.mkdir()
        overrides = subject.evaluation(folder, data=data, samples=samples)
        if any(_RAY_FOLDER in override for override in overrides):
            overrides.append(f"++{_RAY_FOLDER}={quoted(ray.path)}")  # that of the training is gone
        config = compose_overrides(overrides)
        _run(overrides, subject, folder=folder, ray_folder=ray.path)
        return _result(subject, config, folder)


def ask(subject: Subject, text: str, *, samples: int) -> list[str]:
    """Answers of vLLM, sampled as in the run's validations.

    Raises:
        ConfigError: for what the overrides lack.
        SystemExit: where vLLM has failed; its output's end has been shown.
    """
    config = compose_overrides(subject.overrides)
    with RayFolder() as temporary:
        model = subject.model
        if subject.checkpoint is not None:
            sys.stderr.write(f"reading {subject.checkpoint.name}, then starting vLLM\n")
            with quiet(), redirect_stderr(StringIO()):  # of what verl's merger does only errors matter here
                model = str(export(subject.checkpoint, temporary.path / "model"))
        assert model is not None
        environment = os.environ | {"PYTHONPATH": _python_path(os.environ)}
        if subject.saved.runs_on_cpu:
            environment = cpu_environment(os.environ, code_path=_CODE_PATH) | {"HF_HUB_OFFLINE": "1"}
        done = subprocess.run(
            [sys.executable, "-m", Question.__module__],
            input=_question(config, model, text, samples).to_json(),
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        _show_tail(done.stdout + done.stderr)
        sys.exit(f"async_dapo: vLLM ended with exit code {done.returncode}")
    [line] = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    found: list[str] = json.loads(line.removeprefix(MARK))
    return found


def _question(config: DictConfig, model: str, text: str, samples: int) -> Question:
    rollout, sampling = config.actor_rollout_ref.rollout, config.actor_rollout_ref.rollout.val_kwargs
    is_greedy = not sampling.do_sample
    template = OmegaConf.to_container(config.data.apply_chat_template_kwargs) or {}
    assert isinstance(template, dict)
    return Question(
        text=text,
        engine={
            "model": model,
            "dtype": rollout.dtype,
            "tensor_parallel_size": rollout.tensor_model_parallel_size,
            "max_model_len": rollout.max_model_len or config.data.max_prompt_length + config.data.max_response_length,
            "gpu_memory_utilization": rollout.gpu_memory_utilization,
            "enforce_eager": True,  # one question is not worth a compilation
            "trust_remote_code": config.actor_rollout_ref.model.trust_remote_code,
        },
        sampling={
            "n": samples,
            "max_tokens": config.data.max_response_length,
            "temperature": 0.0 if is_greedy else sampling.temperature,
            "top_p": 1.0 if is_greedy else sampling.top_p,
            "top_k": -1 if is_greedy else sampling.top_k,
        },
        template={str(name): value for name, value in template.items()},
    )


def _run(overrides: Sequence[str], subject: Subject, *, folder: Path, ray_folder: Path) -> None:
    environment = os.environ | {"PYTHONPATH": _python_path(os.environ)}
    if subject.saved.runs_on_cpu:
        environment = run_environment(os.environ, code_path=_CODE_PATH, output=folder, ray_folder=ray_folder)
        environment["TMPDIR"] = str(ray_folder)
    started_in = subject.saved.started_in or Path.cwd()
    environment["PYTHONPATH"] += f"{os.pathsep}{started_in}"  # behind this recipe: another may lie there
    log = TrainLog(file=folder / "train.log")
    command = [sys.executable, "-P", "-m", train.MODULE, *overrides]
    process = TrainingProcess(command, environment=environment, log_file=log.file, folder=started_in)
    with process:
        while True:
            exit_code = process.exit_code
            for event in log.new_events():
                if str(folder) not in event:  # it is gone afterwards
                    _say(event)
            if exit_code is not None:
                break
            process.watch(1.0)
    if exit_code != 0:
        _show_tail(log.file.read_text(errors="replace"))
        sys.exit(f"async_dapo: {log.last_words() or f'the evaluation ended with exit code {exit_code}'}")


def _result(subject: Subject, config: DictConfig, folder: Path) -> dict[str, Any]:
    kept = json.loads((folder / KEPT_FILE).read_text())
    [dump] = (folder / "answers").glob("*.jsonl")
    answers = joined(read_dump(dump), kept["sources"], kept["lengths_tok"])
    samples, longest_tok = config.actor_rollout_ref.rollout.val_kwargs.n, config.data.max_response_length
    [*_, line] = read_lines(folder / STEPS_FILE)
    files = config.data.val_files
    return {
        "subject": subject.name,
        "checkpoint": None if subject.checkpoint is None else str(subject.checkpoint),
        "step": None if subject.checkpoint is None else step_of(subject.checkpoint),
        "data": [files] if isinstance(files, str) else list(files),
        "sampling": OmegaConf.to_container(config.actor_rollout_ref.rollout.val_kwargs),
        "figures": figures(answers, samples=samples, prompts=len(kept["lengths_tok"]), longest_tok=longest_tok),
        "by_source": by_source(answers, kept["sources"], samples=samples, longest_tok=longest_tok),
        "validation": {key: value for key, value in line["data"].items() if key.startswith("val-")},
        "answers": as_rows(answers),
    }


def _in_words(result: Mapping[str, Any]) -> str:
    answers = [Answer(**row) for row in result["answers"]]
    parts = [table(answers, rows=_SHOWN_ROWS), ""]
    sources = result["by_source"] if len(result["by_source"]) > 1 else {}
    for name, found in {**sources, "all": result["figures"]}.items():
        words = []
        for key, value in found.items():
            if isinstance(value, dict):
                words.append("tokens " + ", ".join(f"{part} {number:.4g}" for part, number in value.items()))
            else:
                words.append(f"{key} {value:.4g}")
        parts.append(f"{name}: {'; '.join(words)}")
    core = {key: value for key, value in result["validation"].items() if key.startswith("val-core/")}
    parts += [f"as a validation of the training: {key} {value:.4g}" for key, value in core.items()]
    return "\n".join(parts)


def _default_output(subject: Subject) -> Path:
    folder = subject.saved.record if subject.saved.record.is_dir() else Path.cwd()
    step = "" if subject.checkpoint is None else f"-step-{step_of(subject.checkpoint)}"
    return folder / f"evaluation{step}.json"


def _python_path(environment: Mapping[str, str]) -> str:
    return os.pathsep.join([str(_CODE_PATH), *filter(None, [environment.get("PYTHONPATH")])])


def _show_tail(text: str) -> None:
    sys.stderr.write("\n".join(text.splitlines()[-_LOG_TAIL_LINES:]) + "\n")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
