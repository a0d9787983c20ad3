#!/usr/bin/env bash
# Puts the de-duplicated training and validation prompts under DATA_HOME:
#
#   DATA_HOME=$HOME/data bash prepare_dapo_data.sh
#
#   dapo-math-17k.parquet   17,398 prompts (published as 1,791,700 rows: each about 100 times)
#   aime-2024.parquet       30 prompts (published as 960 rows: each 32 times; use val_kwargs.n=32)
#
# huggingface_hub downloads the publisher's files, with its own variables (HF_ENDPOINT for a mirror), and goes
# on with a download that was interrupted. Their sha256 is checked, the first copy of every prompt is kept in the
# published order, and what is made of them gets its name when it is whole. Files that are there are checked
# and kept. Takes no arguments; the environment decides:
#
#   DATA_HOME        folder for the data; required
#   OVERWRITE        1 = make them again; the old file stays until the new one is good [0]
#   DAPO_DATA_PINS   file that replaces the table below []
#   PYTHON           a python with huggingface_hub and pyarrow, as verl's [python3]
set -euo pipefail

if [[ ${1:-} == --help || ${1:-} == -h ]]; then
  sed -n '2,/^set -/ { /^set -/d; s/^# \{0,1\}//; p; }' "${BASH_SOURCE[0]}" # the comment above
  exit
fi
: "${DATA_HOME:?set DATA_HOME to the folder for the data, for example DATA_HOME=\$HOME/data}"
for gone in DOWNLOAD_ATTEMPTS DOWNLOAD_RETRY_DELAY_S DOWNLOAD_CONNECT_TIMEOUT_S DOWNLOAD_STALL_TIMEOUT_S; do
  if [[ -n ${!gone:-} ]]; then
    echo "prepare_dapo_data: ERROR: $gone=${!gone}: is gone, huggingface_hub downloads; set HF_HUB_DOWNLOAD_TIMEOUT" >&2
    exit 1
  fi
done
export DATA_HOME
exec "${PYTHON:-python3}" - "$@" <<'PY'
import fcntl
import hashlib
import os
import re
import shutil
import sys
from pathlib import Path

# What is pinned: commit and sha256 of the files as BytedTsinghua-SIA publishes them, the rows in them and
# the distinct prompts. Nobody downloaded them for this recipe: the values are what several public
# repositories record or check for the same download (the first sha256 in ten places, the second in four),
# so a wrong pin shows as a refusal, never as wrong data.
PINS = """
# file                 repository                       revision                                  path                        sha256                                                            rows     prompts
dapo-math-17k.parquet  BytedTsinghua-SIA/DAPO-Math-17k  65877096c24ffa7abc4e4fa5edb95cf3413a5674  data/dapo-math-17k.parquet  534375d6bb8630d22ab46a56e11f2ffec1d288d8f7d04099bc82d68948705941  1791700  17398
aime-2024.parquet      BytedTsinghua-SIA/AIME-2024      aa49075e24ad594b79fdf0bdcefa735c2181be67  data/aime-2024.parquet      12154e38a716d12db5731f9a022ae69a610c4f7d0e0dcc04e902887a686877e7  960      30
"""
ROW = re.compile(r"([\w.-]+) (\S+) ([0-9a-f]{40}) (\S+) ([0-9a-f]{64}) (\d+) (\d+)")
COLUMNS = ["data_source", "prompt", "reward_model"]  # what verl's dataset and reward manager read
SOURCE_KEY = b"async_dapo.source"


def refuse(message):
    sys.exit(f"prepare_dapo_data: ERROR: {message}")


def log(message):
    print(f"prepare_dapo_data: {message}", file=sys.stderr)


try:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from huggingface_hub import hf_hub_download
except ImportError as missing:
    refuse(f"{sys.executable}: {missing}; run: {sys.executable} -m pip install huggingface_hub pyarrow, or set PYTHON")


def first_copies(path, rows, prompts, remedy):
    """The file, the rows whose prompt was not seen before, and the number of prompts with several ground truths."""
    file = pq.ParquetFile(path, page_checksum_verification=True)
    if not set(COLUMNS) <= set(file.schema_arrow.names):
        refuse(f"{path}: expected the columns {COLUMNS}, got {file.schema_arrow.names}; {remedy}")
    if file.metadata.num_rows != rows:
        refuse(f"{path}: expected {rows} rows, got {file.metadata.num_rows}; {remedy}")
    truth_of, conflicts, kept = {}, set(), []
    for batch in file.iter_batches():
        new = []
        for row, (source, prompt, reward) in enumerate(zip(*(batch.column(c).to_pylist() for c in COLUMNS))):
            try:
                key, truth = tuple((m["role"], m["content"]) for m in prompt), reward["ground_truth"]
            except (TypeError, KeyError):
                key, truth = (), None
            if not key or truth is None or source is None:
                got = f"{prompt!r:.80}, {reward!r:.80}, {source!r}"
                refuse(f"{path}: expected prompt = [{{role, content}}, ...], reward_model = {{ground_truth, ...}}"
                       f" and a data_source in every row, got {got}; {remedy}")
            if key not in truth_of:
                truth_of[key] = truth
                new.append(row)
            elif truth_of[key] != truth:
                conflicts.add(key)
        if new:
            kept.append(batch.take(pa.array(new)))
    if len(truth_of) != prompts:
        refuse(f"{path}: expected {prompts} distinct prompts, got {len(truth_of)}; {remedy}")
    return file, kept, len(conflicts)


def check(path, prompts, source, remedy):
    file, _, _ = first_copies(path, prompts, prompts, remedy)
    made_from = (file.schema_arrow.metadata or {}).get(SOURCE_KEY, source.encode()).decode()
    if made_from != source:
        refuse(f"{path}: expected one made from {source}, got one made from {made_from}; {remedy}")


def download(staging, file, repository, revision, path, sha256):
    try:
        raw = hf_hub_download(repository, path, repo_type="dataset", revision=revision, local_dir=staging)
    except Exception as error:  # of the hub, a proxy, the network or the disk
        what = " ".join(str(error.__cause__ or error).split())
        refuse(f"{file}: cannot be downloaded: {what}; run again to go on, or set HF_ENDPOINT to a mirror")
    found = hashlib.sha256(Path(raw).read_bytes()).hexdigest()
    if found != sha256:
        size = os.path.getsize(raw)
        shutil.rmtree(staging)
        refuse(f"{file}: expected sha256 {sha256}, got {size} bytes with {found}; if HF_ENDPOINT is a mirror, or a proxy "
               "is in the way, try another one, then run again")
    return raw


def prepare(home, staging, file, repository, revision, path, sha256, rows, prompts):
    target, source = home / file, f"{repository}@{revision}/{path} sha256:{sha256}"
    if target.exists() and overwrite == "0":
        check(target, prompts, source, "set OVERWRITE=1 to replace it, or move it away")
        log(f"{target}: {prompts} prompts, checked and kept")
        return
    raw = download(staging, file, repository, revision, path, sha256)
    published, kept, conflicts = first_copies(raw, rows, prompts, "correct the table of pins")
    table = pa.Table.from_batches(kept, schema=published.schema_arrow).replace_schema_metadata({SOURCE_KEY: source})
    part = home / f"{file}.part"
    pq.write_table(table, part, write_page_checksum=True)
    check(part, prompts, source, "run again")
    part.replace(target)
    if conflicts:
        log(f"{conflicts} prompts have several ground truths, the first is kept")
    log(f"{target}: {prompts} prompts, ready")


overwrite, table = os.environ.get("OVERWRITE") or "0", os.environ.get("DAPO_DATA_PINS")
if len(sys.argv) > 1:
    refuse(f"got the argument '{sys.argv[1]}'; there are none, see the environment variables at the head of the script")
if overwrite not in ("0", "1"):
    refuse(f"OVERWRITE={overwrite}: must be 0 or 1")
try:
    lines = [line for line in (Path(table).read_text() if table else PINS).splitlines() if line.strip()]
except OSError as error:
    refuse(f"DAPO_DATA_PINS={table}: cannot be read: {error}; name a file with a table of pins, or unset it")
pins = [ROW.fullmatch(" ".join(line.split())) for line in lines if not line.startswith("#")]
if not pins or None in pins:
    refuse("table of pins: expected rows of file, repository, 40-digit revision, path, 64-digit sha256, rows, prompts")
home = Path(os.environ["DATA_HOME"]).absolute()
staging = home / ".prepare_dapo_data"
try:
    home.mkdir(parents=True, exist_ok=True)
    lock = open(home / ".prepare_dapo_data.lock", "w")
except OSError as error:
    refuse(f"DATA_HOME={home}: cannot be written to: {error}; name another folder")
with lock:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        refuse(f"{home}: another run is preparing this folder, or it has no locks ({error}); wait, or choose another")
    if overwrite == "1":
        shutil.rmtree(staging, ignore_errors=True)
    for pin in pins:
        file, repository, revision, path, sha256, rows, prompts = pin.groups()
        try:
            prepare(home, staging, file, repository, revision, path, sha256, int(rows), int(prompts))
        except (pa.ArrowException, OSError) as error:
            if getattr(error, "errno", None):  # of the disk, not of the content
                refuse(f"{home}: {error}; make room or name another DATA_HOME, then run again to go on")
            refuse(f"{file}: expected a parquet file that can be read, got: {error}; set OVERWRITE=1 to replace it")
        except KeyboardInterrupt:
            sys.exit(130)
    shutil.rmtree(staging, ignore_errors=True)
PY
