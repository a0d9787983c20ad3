"""The quick start's own behaviour, with a scripted training process in place of the real one."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

import psutil
import pytest

from recipe.async_dapo.record import keys
from recipe.async_dapo_lab.quickstart import __main__ as quickstart
from recipe.async_dapo_lab.quickstart.model_and_data import Assets
from recipe.async_dapo_lab.quickstart.overrides import QUICK_STEPS
from recipe.async_dapo_lab.quickstart.run_metrics import ACCURACY, RunMetrics
from recipe.async_dapo_lab.quickstart.train_log import TrainLog
from recipe.async_dapo_lab.report.headline import TOKENS

from ..support.signals import as_in_the_foreground

ROOT = Path(__file__).parents[2]
# Runs the quick start with `sys.argv[1]` as the code of the training process, a fork of one that imports `sys.argv[2]`.
LAUNCHER = """
import sys
from functools import partial
from pathlib import Path
from recipe.async_dapo_lab.quickstart import __main__ as quickstart
from recipe.async_dapo_lab.quickstart.model_and_data import Assets
code = sys.argv.pop(1)
quickstart.prepare_assets = lambda parent, **_: Assets(folder=Path("none"))
quickstart._command = lambda options, *_: ["-c", code, *options.overrides]
quickstart.ForkServer = partial(quickstart.ForkServer, sys.argv.pop(1).split())
quickstart.main()
"""
LITTLE = "setproctitle"
TRAIN = """
import json, os, sys, time
def log(step, **data):
    with open(os.environ["VERL_FILE_LOGGER_PATH"], "a") as file:
        file.write(json.dumps({"step": step, "data": data}) + "\\n")
"""


def step_data(*, accuracy: float | None = None) -> dict[str, float]:
    data = {
        keys.REWARD: 0.5,
        keys.STEP_S: 1.5,
        "timing_s/gen": 1.0,
        keys.INTERRUPTED: 3.0,
        keys.REJECTED_RATIO: 0.5,
        TOKENS: 2_000.0,
    }
    return data if accuracy is None else data | {ACCURACY: accuracy}


def run(code: str, output: Path, *arguments: str, imports: str = LITTLE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LAUNCHER, TRAIN + code, imports, "--output", str(output), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def test_given_a_run_of_two_steps_when_it_ends_then_each_step_and_what_the_run_came_to_are_told(tmp_path):
    log = f"log(0, **{{{ACCURACY!r}: 0.4}}); log(1, **{step_data()}); log(2, **{step_data(accuracy=0.7)})"
    done = run(log, tmp_path / "run", "--steps", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    name = ACCURACY.removeprefix("val-core/")
    assert f"step 0/2 | accuracy 0.4 ({name})\n" in done.stdout
    assert "step 1/2 | 1.5 s (rollout 1) | filtered 50 % | interrupted 3 | reward 0.5 | 2 s left\n" in done.stdout
    said, cost, files, again = done.stdout.splitlines()[-4:]
    assert said == f"step 1.5 s (median of 1); accuracy 0.40 to 0.70 ({name})"
    assert re.fullmatch(r"2 steps in \d+ s, at most \d\.\d GB of memory", cost)
    assert files.startswith(f"{tmp_path / 'run'}: report.html, train.log, ")
    assert again.startswith("no checkpoint is complete; from the first step again: ")


def test_given_a_checkpoint_when_the_run_ends_then_it_says_what_goes_on_with_it_asks_evaluates_and_exports(tmp_path):
    folder = tmp_path / "my run"
    checkpoint = f"saving(Path({str(folder)!r}) / 'checkpoints' / 'global_step_2', [b'pool'])"
    imports = "from pathlib import Path\nfrom recipe.async_dapo.record.checkpoint_folder import saving"
    code = f"{imports}\nwith {checkpoint}: pass\nlog(2, **{step_data()})"
    done = run(code, folder, "--steps", "2", "--", "a.b='c d'")
    assert done.returncode == 0, done.stdout + done.stderr
    head, *commands = done.stdout.splitlines()[-5:]
    assert head == "checkpoint of step 2; what next:"
    words = [shlex.split(command.partition(":")[2]) for command in commands]
    lab = "recipe.async_dapo_lab"
    again = [f"{lab}.quickstart", "--output", str(folder), "--seed", "0", "--steps", f"{2 + QUICK_STEPS}"]
    assert words[0][1:] == ["-m", *again, "--", "a.b='c d'"]
    assert words[1][1:] == ["-m", f"{lab}.evaluate", str(folder), "--ask", quickstart.QUESTION]
    assert words[2][1:] == ["-m", f"{lab}.evaluate", str(folder)]
    assert words[3][1:] == ["-m", f"{lab}.export", str(folder), "--output", f"{folder}/model"]


def test_given_another_working_folder_then_commands_that_go_on_say_where_python_finds_them(tmp_path, monkeypatch):
    monkeypatch.setenv(quickstart.WITHIN, "bash with_a_service.sh")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:/my/modules")  # as `quickstart.sh` leaves it
    monkeypatch.chdir(ROOT)
    assert quickstart._python().startswith("bash with_a_service.sh ")
    monkeypatch.chdir(tmp_path)
    assert quickstart._python().startswith(f"PYTHONPATH={ROOT}:/my/modules bash with_a_service.sh ")


def test_given_a_run_that_goes_on_when_it_is_followed_then_earlier_steps_are_not_told_again(tmp_path):
    first = f"log(1, **{step_data()}); log(2, **{step_data()}); log(3, **{step_data()})"
    run(first, tmp_path / "run", "--steps", "3")
    lost = step_data(accuracy=0.9)
    resumed = f"log(1, **{step_data()}); log(2, **{step_data()}); log(2, **{{{ACCURACY!r}: 0.4}}); log(3, **{lost})"
    done = run(resumed, tmp_path / "run", "--steps", "3")
    told = [line.split(" | ")[:2] for line in done.stdout.splitlines() if line.startswith("step ")]
    assert told[0] == ["step 2/3", f"accuracy 0.4 ({ACCURACY.removeprefix('val-core/')})"]
    assert told[1] == ["step 3/3", "1.5 s (rollout 1)"] and told[2][0].startswith("step 1.5 s (median of 2)")
    assert "\n1 of 3 steps in " in done.stdout


def test_given_a_run_that_only_validates_when_it_ends_then_that_is_no_failure(tmp_path):
    done = run(f"log(8, **{{{ACCURACY!r}: 0.4}})", tmp_path / "run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"step 8/{QUICK_STEPS} | accuracy 0.4" in done.stdout and "no step was trained" in done.stdout


def test_given_compare_when_both_have_trained_then_the_report_has_both_and_the_measured_speed_up(tmp_path, monkeypatch):
    monkeypatch.setenv(quickstart.WITHIN, "bash with_a_service.sh")
    seconds = "3.0 if 'verl_sync' in os.environ['VERL_FILE_LOGGER_PATH'] else 1.5"
    log = f"log(1, **({step_data(accuracy=0.7)} | {{{keys.STEP_S!r}: {seconds}}}))"
    done = run(log, tmp_path / "run", "--steps", "1", "--compare")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "its steps are 2.00 times as fast as those of verl_sync" in done.stdout
    text = (tmp_path / "run" / "report.html").read_text()
    assert "Side by side" in text and "<b>verl_sync</b>" in text
    assert "\n1 step in " in done.stdout and "first step again: bash with_a_service.sh " in done.stdout


def test_given_an_earlier_start_when_it_starts_again_into_the_same_folder_then_its_log_and_metrics_stay(tmp_path):
    for step in (1, 2, 3):
        run(f"print('start {step}'); log({step}, **{step_data()})", tmp_path / "run")
    for number, name in ((1, ".1"), (2, ".2"), (3, "")):
        assert (tmp_path / "run" / f"train{name}.log").read_text() == f"start {number}\n"
        assert json.loads((tmp_path / "run" / f"metrics{name}.jsonl").read_text())["step"] == number


def test_given_a_failing_run_when_it_ends_then_its_last_lines_are_shown_and_overrides_have_reached_it(tmp_path):
    code = "print('[58 s] engine 1 of 1', flush=True); print('[it] went wrong', sys.argv[1:]); sys.exit(5)"
    done = run(code, tmp_path / "run", "--", "a.b=c", "--", "d=e")
    assert done.returncode == 1
    said = done.stdout.splitlines()
    assert said[0].startswith("preparing model and data; then starting Ray") and said[1] == "[58 s] engine 1 of 1"
    assert "[it] went wrong ['a.b=c', '--', 'd=e']" in done.stdout and "exit code 5" in done.stdout


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "print('Traceback ...'); print('async_dapo: data.train_batch_size=[0]: must be >= 1'); sys.exit(1)",
            "failed: data.train_batch_size=[0]: must be >= 1",
        ),
        ("pass", "without a line"),
    ],
    ids=["refused", "no step"],
)
def test_given_a_run_that_has_not_trained_when_it_ends_then_the_last_line_says_why(tmp_path, code, said):
    done = run(code, tmp_path / "run")
    assert done.returncode == 1 and said in done.stdout.splitlines()[-1]


def test_given_groups_that_failed_when_the_run_ends_then_their_causes_are_told(tmp_path):
    data = step_data() | {keys.FAILED_GROUPS: 3.0}
    line = {"step": 1, "time_s": 1.0, "data": data, "causes": {"reward_error: KeyError('a') at reward.py:3": 3}}
    file = tmp_path / "run" / "steps.jsonl"
    record = f"open({str(file)!r}, 'w').write({json.dumps(line) + chr(10)!r})"
    done = run(f"log(1, **{data}); {record}", tmp_path / "run", "--steps", "1")
    assert done.stdout.splitlines()[-1] == "3 groups failed: reward_error: KeyError('a') at reward.py:3"
    assert "; 3 groups failed" in done.stdout


@pytest.mark.parametrize("limit", ["--stall-s", "--timeout-s"])
def test_given_a_hanging_run_when_a_limit_passes_then_it_is_ended_with_the_limit_named(tmp_path, limit):
    done = run("time.sleep(600)", tmp_path / "run", limit, "2")
    assert done.returncode == 1
    assert limit in done.stdout


def test_given_ctrl_c_when_a_run_goes_on_then_it_is_ended_with_a_report_and_its_last_step_is_told(tmp_path):
    line = {"step": 1, "time_s": 1.0, "data": step_data(), "causes": {}}
    ends = {"step": 2, "data": step_data()}
    code = f"""{TRAIN}
import signal
def end(*_):
    open("run/metrics.jsonl", "a").write({json.dumps(ends) + chr(10)!r})  # a step that ends meanwhile
    sys.exit("async_dapo: interrupted; go on with this")
signal.signal(signal.SIGTERM, end)
open("run/steps.jsonl", "w").write({json.dumps(line) + chr(10)!r})
print(os.getpid(), file=open('pid', 'w'), flush=True)
os.rename('pid', 'started')
time.sleep(600)
"""
    process = started(code, tmp_path, preexec_fn=as_in_the_foreground)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGINT
    assert "interrupted; everything it started is being ended: up to half a minute" in output
    report = tmp_path / "run" / "report.html"
    assert report.exists()
    last, ended, told, again = output.splitlines()[-4:]
    assert last.startswith("step 2/"), "the last step that was trained"
    assert (ended, told) == ("interrupted; everything it started has been ended", f"report: {report}")
    assert again.startswith("no checkpoint is complete; from the first step again: ") and "--output run" in again
    assert not psutil.pid_exists(int((tmp_path / "started").read_text()))


def started(code: str, folder: Path, *, temporary: str = gettempdir(), **options) -> subprocess.Popen[str]:
    """Its training has written a file `started`."""
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, code, LITTLE, "--output", str(folder / "run")],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": temporary},
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )
    while not (folder / "started").exists():
        assert process.poll() is None
        time.sleep(0.05)
    return process


# Like Ray's processes: one in a session of its own, which outlives its parent, and shared memory.
LEAVES = """
import os, subprocess, tempfile, time
from multiprocessing import resource_tracker, shared_memory
segment = shared_memory.SharedMemory(create=True, size=4096)
resource_tracker.unregister(segment._name, "shared_memory")
daemon = subprocess.Popen(["sleep", "602"], start_new_session=True)
open(os.path.join(tempfile.gettempdir(), "file"), "w")
print(os.getpid(), daemon.pid, segment.name, file=open("pids", "w"), flush=True)
os.rename("pids", "started")
time.sleep(600)
"""


def test_given_sigkill_when_a_run_goes_on_then_nothing_of_it_is_left(tmp_path):
    with TemporaryDirectory(prefix="ad-") as temporary:  # sockets lie in it: its path is short
        process = started(LEAVES, tmp_path, temporary=temporary)
        *pids, segment = (tmp_path / "started").read_text().split()
        left = [psutil.Process(int(pid)) for pid in pids]
        server = left[0].parent()
        assert Path("/dev/shm", segment).exists() and os.listdir(temporary)
        process.kill()
        process.communicate()
        _, alive = psutil.wait_procs([*left, server], timeout=300)
        assert not alive and not Path("/dev/shm", segment).exists() and not os.listdir(temporary)


def test_given_a_fork_server_that_fails_when_it_trains_then_it_says_so_and_goes_on_without(tmp_path):
    done = run(f"log(1, **{step_data()})", tmp_path / "run", "--steps", "1", imports="no_such_module")
    assert "the fork server has ended: ModuleNotFoundError: No module named 'no_such_module'\n" in done.stdout
    assert done.returncode == 0 and "\n1 step in " in done.stdout


@pytest.mark.parametrize("arguments", [["--steps", "0"], ["--seed", "none"]])
def test_given_a_bad_option_when_parsed_then_nothing_starts(tmp_path, monkeypatch, capsys, arguments):
    monkeypatch.setattr(quickstart, "_run", lambda _: pytest.fail("it has started"))
    with pytest.raises(SystemExit) as ended:
        quickstart.main(["--output", str(tmp_path / "run"), *arguments])
    assert ended.value.code == 2 and arguments[0].removeprefix("--") in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_given_steps_as_an_override_when_parsed_then_they_are_the_quick_start_s_own():
    options = quickstart._parse(["--steps", "9", "--", "trainer.total_training_steps=2", "trainer.save_freq=1"])
    assert options.steps == 2 and options.overrides == ("trainer.save_freq=1",)


@pytest.mark.parametrize("system", [quickstart.RECIPE, quickstart.VERL_SYNC])
@pytest.mark.parametrize(("given", "cut"), [([], True), (["data.val_files=mine.parquet"], False)])
def test_given_prompts_of_the_user_s_when_it_validates_then_it_takes_all_of_them(system, given, cut):
    options = quickstart._parse(["--", *given])
    command = quickstart._command(options, Assets(folder=Path("none")), Path("ray"), system)
    assert any(word.startswith("data.val_max_samples=") for word in command) is cut


def test_given_a_log_when_it_grows_then_phases_and_calls_that_fail_are_shown(tmp_path):
    log = TrainLog(file=tmp_path / "train.log")
    told = "a call of search failed, and its agent loop is told so: HTTPError('500') at my_tools.py:7"
    waits = "the start waits for the check of data, for 30 s by now"
    log.file.write_text(
        f"(worker) [5 s] engine 1 of 1\nother\n(worker) WARNING:now:{told}\n[then][ERROR] - {waits}\nhalf"
    )
    assert log.new_events() == ["[5 s] engine 1 of 1", told, waits]


def test_given_a_half_written_line_when_read_then_it_waits_for_the_rest(tmp_path):
    metrics = RunMetrics(file=tmp_path / "metrics.jsonl")
    assert metrics.read_new() == []
    line = json.dumps({"step": 1, "data": {keys.REWARD: 0.25}}) + "\n"
    with metrics.file.open("w") as file:
        file.write(line[:10])
        file.flush()
        assert metrics.read_new() == []
        file.write(line[10:])
    assert metrics.read_new() == [1]
    assert metrics.last(keys.REWARD) == 0.25
    assert metrics.last(ACCURACY) is None
