#!/usr/bin/env bash
# Puts the de-duplicated training and validation prompts under DATA_HOME:
#
#   DATA_HOME=$HOME/data bash prepare_dapo_data.sh
#
#   dapo-math-17k.parquet   17,398 prompts (published as 1,791,700 rows: each about 100 times)
#   aime-2024.parquet       30 prompts (published as 960 rows: each 32 times; use val_kwargs.n=32)
#
# It downloads the publisher's files, checks their sha256, keeps the first copy of every prompt in the
# published order, checks the result, and only then moves it to its name. A run that was interrupted
# continues its download; good files are checked and kept. Needs bash 4, curl, flock, sha256sum, and a
# python3 with pyarrow. Takes no arguments; the environment decides:
#
#   DATA_HOME                   folder for the data; required
#   OVERWRITE                   1 = download again; the old file stays until the new one is good [0]
#   HF_ENDPOINT                 base URL of the hub or of a mirror [https://huggingface.co]
#   DAPO_DATA_PINS              file that replaces the table below []
#   PYTHON                      a python with pyarrow [python3]
#   DOWNLOAD_ATTEMPTS           requests per file before giving up [8]
#   DOWNLOAD_RETRY_DELAY_S      pause before attempt k: k - 1 times this [2]
#   DOWNLOAD_CONNECT_TIMEOUT_S  [15]
#   DOWNLOAD_STALL_TIMEOUT_S    a transfer below 1 kB/s for this long is cut and resumed [60]
set -euo pipefail

# What is pinned: commit and sha256 of the files as BytedTsinghua-SIA publishes them, the rows in them and
# the distinct prompts. Nobody downloaded them for this recipe: the values are what several public
# repositories record or check for the same download (the first sha256 in ten places, the second in four),
# so a wrong pin shows as a refusal, never as wrong data.
# What is not pinned: the de-duplicated files. They are written here and their bytes depend on the version
# of pyarrow; the sha256 of each is recorded next to it, in FILE.sha256, when it is made.
read -r -d '' pins <<'TABLE' || true
# file                 repository                       revision                                  path                        sha256                                                            rows     prompts
dapo-math-17k.parquet  BytedTsinghua-SIA/DAPO-Math-17k  65877096c24ffa7abc4e4fa5edb95cf3413a5674  data/dapo-math-17k.parquet  534375d6bb8630d22ab46a56e11f2ffec1d288d8f7d04099bc82d68948705941  1791700  17398
aime-2024.parquet      BytedTsinghua-SIA/AIME-2024      aa49075e24ad594b79fdf0bdcefa735c2181be67  data/aime-2024.parquet      12154e38a716d12db5731f9a022ae69a610c4f7d0e0dcc04e902887a686877e7  960      30
TABLE

read -r -d '' parquet_tool <<'PY' || true
"""dedup RAW OUT ROWS PROMPTS SOURCE REMEDY: write the first copy of every prompt of RAW to OUT.
check FILE PROMPTS SOURCE REMEDY: FILE holds PROMPTS distinct prompts with all that verl reads."""
import sys

import pyarrow as pa
import pyarrow.parquet as pq

COLUMNS = ["data_source", "prompt", "reward_model"]  # what verl's dataset and reward manager read
SOURCE_KEY = b"async_dapo.source"


def refuse(message):
    sys.exit(f"prepare_dapo_data: ERROR: {message}")


def open_rows(path, rows, remedy):
    file = pq.ParquetFile(path)
    if not set(COLUMNS) <= set(file.schema_arrow.names):
        refuse(f"{path}: expected the columns {COLUMNS}, got {file.schema_arrow.names}; {remedy}")
    if file.metadata.num_rows != rows:
        refuse(f"{path}: expected {rows} rows, got {file.metadata.num_rows}; {remedy}")
    return file


def first_copies(file, prompts, remedy, path):
    """The rows whose prompt was not seen before, and the number of prompts with several ground truths."""
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
    return pa.Table.from_batches(kept, schema=file.schema_arrow), len(conflicts)


def dedup(raw, out, rows, prompts, source, remedy):
    table, conflicts = first_copies(open_rows(raw, int(rows), remedy), int(prompts), remedy, raw)
    pq.write_table(table.replace_schema_metadata({SOURCE_KEY: source}), out)
    check(out, prompts, source, remedy)
    if conflicts:
        print(f"prepare_dapo_data: {conflicts} prompts have several ground truths, the first is kept", file=sys.stderr)


def check(path, prompts, source, remedy):
    file = open_rows(path, int(prompts), remedy)
    first_copies(file, int(prompts), remedy, path)
    made_from = (file.schema_arrow.metadata or {}).get(SOURCE_KEY, source.encode()).decode()
    if made_from != source:
        refuse(f"{path}: expected one made from {source}, got one made from {made_from}; {remedy}")


try:
    {"dedup": dedup, "check": check}[sys.argv[1]](*sys.argv[2:])
except (pa.ArrowException, OSError) as error:
    refuse(f"{sys.argv[2]}: expected a parquet file that can be read, got: {error}; {sys.argv[-1]}")
PY

log() { printf 'prepare_dapo_data: %s\n' "$*" >&2; }

die() {
  log "ERROR: $*"
  exit 1
}

child=""
scratch=()

# Runs a command that a signal to this script ends at once, instead of after the command.
run() {
  local status=0
  "$@" &
  child=$!
  wait "$child" || status=$?
  child=""
  return "$status"
}

clean_up() {
  if [[ -n $child ]]; then
    kill "$child" 2>/dev/null || true
    wait "$child" 2>/dev/null || true
  fi
  rm -f -- "${scratch[@]}"
}

sha256_of() { sha256sum <"$1" | cut -d ' ' -f 1; }

has_sha256() { [[ -f $1 && $(sha256_of "$1") == "$2" ]]; }

size_of() { if [[ -f $1 ]]; then wc -c <"$1" | tr -d ' '; else echo 0; fi; }

# fetch URL PART SHA256: PART becomes the file with this checksum, or the script ends.
fetch() {
  local url=$1 part=$2 sha256=$3
  local attempt status code is_inherited=0 why="" progress=--silent
  if [[ -t 2 ]]; then progress=--progress-bar; fi
  if [[ -f $part ]]; then is_inherited=1; fi

  for ((attempt = 1; attempt <= attempts; attempt++)); do
    if has_sha256 "$part" "$sha256"; then return; fi
    if ((attempt > 1)); then
      log "$file: $why; attempt $attempt of $attempts"
      run sleep $((retry_delay_s * (attempt - 1)))
    fi
    log "$file: downloading $url from byte $(size_of "$part")"
    status=0
    run curl --fail --location --proto '=http,https' --show-error "$progress" \
      --connect-timeout "$connect_timeout_s" --speed-limit 1000 --speed-time "$stall_timeout_s" \
      --continue-at - --output "$part" --write-out '%{http_code}' "$url" >"$code_file" || status=$?
    code=$(<"$code_file")

    case "$status/$code" in
      */416 | 0/*)
        # The server has no more bytes. Those of an earlier run may be stale: they get one fresh start.
        if has_sha256 "$part" "$sha256"; then return; fi
        if ((is_inherited)); then
          why="the bytes kept from an earlier run were wrong and are discarded"
          is_inherited=0
        else
          why=$(describe_wrong_file "$part")
          rm -f -- "$part"
          die "$file: expected sha256 $sha256 from $url, got $why; if HF_ENDPOINT is a mirror or a" \
            "proxy is in the way, try another one, then run again"
        fi
        rm -f -- "$part"
        ;;
      33/* | 36/*)
        why="the server cannot resume, the download starts again"
        is_inherited=0
        rm -f -- "$part"
        ;;
      */408 | */425 | */429 | */5??) why="HTTP status $code" ;;
      */4??)
        die "$file: expected the file at $url, got HTTP status $code; check HF_ENDPOINT ($endpoint)" \
          "and the revision in the table of pins"
        ;;
      1/* | 3/* | 23/* | 47/* | 60/* | 77/*)
        die "$file: curl cannot download $url to $part, exit status $status (see above)"
        ;;
      28/*) why="no connection or no progress for too long" ;;
      *) why="the connection broke after $(size_of "$part") bytes, curl exit status $status" ;;
    esac
  done
  if has_sha256 "$part" "$sha256"; then return; fi
  die "$file: expected a complete download, got $(size_of "$part") bytes in $attempts attempts ($why);" \
    "run again to continue it, or set HF_ENDPOINT to a mirror"
}

describe_wrong_file() {
  local kind="a file"
  if [[ ! -s $1 ]]; then
    echo "an empty file"
    return
  fi
  case $(head -c 7 "$1" | tr -d '\0') in
    PAR1*) ;;
    version) kind="a git-lfs pointer" ;;
    *) kind="no parquet file" ;;
  esac
  printf '%s of %s bytes with sha256 %s' "$kind" "$(size_of "$1")" "$(sha256_of "$1")"
}

record_sha256() {
  (cd "$(dirname "$1")" && sha256sum "$(basename "$1")") >"$1.sha256.part"
  mv -f -- "$1.sha256.part" "$1.sha256"
}

keep_existing() {
  local target=$1 prompts=$2 source=$3 recorded
  local remedy="set OVERWRITE=1 to replace it, or move it away"
  if [[ -f $target.sha256 ]]; then
    read -r recorded _ <"$target.sha256" || true
    has_sha256 "$target" "$recorded" ||
      die "$target: expected sha256 $recorded ($target.sha256), got $(sha256_of "$target"); $remedy"
  fi
  run "$python" -c "$parquet_tool" check "$target" "$prompts" "$source" "$remedy" || exit 1
  if [[ ! -f $target.sha256 ]]; then
    log "$target: had no recorded sha256; it looks right, so the one it has now is recorded"
    record_sha256 "$target"
  fi
  rm -f -- "$target.download.part"
  log "$target: $prompts prompts, checked and kept"
}

prepare() {
  local file=$1 repository=$2 revision=$3 path=$4 sha256=$5 rows=$6 prompts=$7
  local target=$DATA_HOME/$file
  local source="$repository@$revision/$path sha256:$sha256"

  if [[ -e $target && $overwrite == 0 ]]; then
    keep_existing "$target" "$prompts" "$source"
    return
  fi
  if [[ $overwrite == 1 ]]; then rm -f -- "$target.download.part"; fi
  fetch "$endpoint/datasets/$repository/resolve/$revision/$path" "$target.download.part" "$sha256"
  log "$file: sha256 is right, keeping one row per prompt"
  run "$python" -c "$parquet_tool" dedup "$target.download.part" "$target.part" "$rows" "$prompts" "$source" \
    "correct the table of pins" || exit 1
  rm -f -- "$target.sha256" # a file without a record is checked and recorded; one with an old record is refused
  mv -f -- "$target.part" "$target"
  record_sha256 "$target"
  rm -f -- "$target.download.part"
  log "$target: $prompts prompts, ready"
}

need_number() { [[ $2 =~ ^[0-9]+$ && $2 -ge $3 && $2 -le 86400 ]] || die "$1=$2: must be a number from $3 to 86400"; }

(($# == 0)) || die "got the argument '$1'; there are none, see the environment variables at the head of $0"
: "${DATA_HOME:?set DATA_HOME to the folder for the data, for example DATA_HOME=\$HOME/data}"
overwrite=${OVERWRITE:-0}
endpoint=${HF_ENDPOINT:-https://huggingface.co}
endpoint=${endpoint%/}
python=${PYTHON:-python3}
attempts=${DOWNLOAD_ATTEMPTS:-8}
retry_delay_s=${DOWNLOAD_RETRY_DELAY_S:-2}
connect_timeout_s=${DOWNLOAD_CONNECT_TIMEOUT_S:-15}
stall_timeout_s=${DOWNLOAD_STALL_TIMEOUT_S:-60}

[[ $overwrite == [01] ]] || die "OVERWRITE=$overwrite: must be 0 or 1"
[[ $endpoint =~ ^https?://[^/] ]] || die "HF_ENDPOINT=$endpoint: must begin with http:// or https://"
need_number DOWNLOAD_ATTEMPTS "$attempts" 1
need_number DOWNLOAD_RETRY_DELAY_S "$retry_delay_s" 0
need_number DOWNLOAD_CONNECT_TIMEOUT_S "$connect_timeout_s" 1
need_number DOWNLOAD_STALL_TIMEOUT_S "$stall_timeout_s" 1
for tool in curl flock sha256sum "$python"; do
  command -v "$tool" >/dev/null || die "$tool: not found; install it (for python: or set PYTHON)"
done
"$python" -c 'import importlib.util as util, sys; sys.exit(util.find_spec("pyarrow") is None)' ||
  die "$python: has no pyarrow; install it with '$python -m pip install pyarrow', or set PYTHON to a python that has it"
if [[ -n ${DAPO_DATA_PINS:-} ]]; then pins=$(<"$DAPO_DATA_PINS"); fi

mkdir -p -- "$DATA_HOME"
DATA_HOME=$(cd -- "$DATA_HOME" && pwd)

# curl and python inherit descriptor 9 on purpose: while a child of a killed run writes, the lock holds.
exec 9>"$DATA_HOME/.prepare_dapo_data.lock"
locked=0
flock --nonblock --conflict-exit-code 75 9 || locked=$?
((locked != 75)) ||
  die "$DATA_HOME: another run is preparing this folder, or a child of a killed one; wait for it, then run again"
((locked == 0)) || die "$DATA_HOME: flock fails, exit status $locked; choose a filesystem with locks as DATA_HOME"
code_file=$DATA_HOME/.prepare_dapo_data.http_code
scratch=("$code_file")
trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

while read -r -u 8 file repository revision path sha256 rows prompts rest; do
  if [[ -z $file || $file == \#* ]]; then continue; fi
  [[ $file =~ ^[A-Za-z0-9._-]+$ && $revision =~ ^[0-9a-f]{40}$ && $sha256 =~ ^[0-9a-f]{64}$ &&
    $rows =~ ^[0-9]+$ && $prompts =~ ^[0-9]+$ && -z $rest ]] ||
    die "table of pins, row '$file': expected file, repository, 40-digit revision, path, 64-digit sha256, rows, prompts"
  scratch+=("$DATA_HOME/$file.part" "$DATA_HOME/$file.sha256.part")
  prepare "$file" "$repository" "$revision" "$path" "$sha256" "$rows" "$prompts"
done 8<<<"$pins"
((${#scratch[@]} > 1)) || die "table of pins: expected at least one row, got none; see DAPO_DATA_PINS"
