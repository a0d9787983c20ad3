"""A checkpoint as a model that transformers, vLLM and others load.

`python -m recipe.async_dapo_lab.export RUN_DIR --output FOLDER`

Weights come from verl's model merger, in bfloat16, which is what engines sample with on GPUs. Beside them lie
tokenizer, chat template, generation config, a model card with the run's numbers, and the run's description, from which
`evaluate` knows how the model was sampled and scored.
"""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from enum import StrEnum
from pathlib import Path

from ..async_dapo.config.values import ConfigError
from ..async_dapo.record.checkpoint_folder import Complete, rank_files, read_complete
from .command_line import path
from .report.model_card import model_card
from .report.run import NoRecord, Run
from .run_files import RUN_FILE
from .saved_run import SavedRun

_ADAPTER_FOLDER = "lora_adapter"  # where verl's merger writes one


class Adapter(StrEnum):
    MERGED = "merged"  # into the weights: a model like any other
    APART = "adapter"  # alone, for engines that have the base model


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="export", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "run", type=path, metavar="RUN_DIR", help="a run's record, its checkpoints, or one folder global_step_N"
    )
    parser.add_argument("--step", type=int, metavar="N", help="default: the newest complete checkpoint")
    parser.add_argument("--output", type=path, required=True, metavar="FOLDER", help="is made")
    parser.add_argument(
        "--lora", type=Adapter, choices=[*Adapter], default=Adapter.MERGED, help="what becomes of an adapter [merged]"
    )
    parsed = parser.parse_args(arguments)
    try:
        folder = export(parsed.run.absolute(), parsed.output.absolute(), step=parsed.step, lora=parsed.lora)
    except ConfigError as error:
        sys.exit(f"async_dapo: {error}")
    sys.stdout.write(f"{folder}\n")


def export(run_folder: Path, output: Path, *, step: int | None = None, lora: Adapter = Adapter.MERGED) -> Path:
    """Write the model of a checkpoint into a new folder, which appears when it is complete.

    Raises:
        ConfigError: naming what is missing or in the way.
    """
    if output.exists() and any(output.iterdir() if output.is_dir() else [output]):
        raise ConfigError("--output", output, "exists already; name another folder, or delete it")
    saved = SavedRun.at(run_folder)
    checkpoint = saved.checkpoint(step)
    _check_backend(checkpoint)
    complete = read_complete(checkpoint)
    draft = output.with_name(f"{output.name}.part-{os.getpid()}")
    draft.mkdir(parents=True)
    try:
        base = complete.model.path if complete.model is not None else ""
        _merge(checkpoint / "actor", draft)
        adapter = _settle_adapter(draft, lora, base=base)
        _describe(draft, saved, complete, adapter=adapter)
        if output.exists():
            output.rmdir()
        draft.rename(output)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return output


def _check_backend(checkpoint: Path) -> None:
    actor = checkpoint / "actor"
    if rank_files(checkpoint):
        if not (actor / "fsdp_config.json").exists():
            raise ConfigError("RUN_DIR", checkpoint, f"{actor} has no fsdp_config.json: verl merges FSDP's shards only")
        return
    command = f"python -m verl.model_merger merge --backend megatron --local_dir {actor} --target_dir FOLDER"
    raise ConfigError(
        "RUN_DIR", checkpoint, f"{actor} has no FSDP shards; where Megatron wrote it, and is installed, run: {command}"
    )


def _merge(actor: Path, target: Path) -> None:
    """By verl's merger, which loads all shards into this machine's memory, and says on standard output what it does. It
    refuses what it has written of a checkpoint that holds an adapter alone (`save_lora_only`): the adapter is whole.
    """
    from verl.model_merger.base_model_merger import ModelMergerConfig
    from verl.model_merger.fsdp_model_merger import FSDPModelMerger

    config = ModelMergerConfig(
        operation="merge",
        backend="fsdp",
        local_dir=str(actor),
        target_dir=str(target),
        hf_model_config_path=str(actor / "huggingface"),
    )
    with redirect_stdout(sys.stderr):
        try:
            FSDPModelMerger(config).merge_and_save()
        except RuntimeError:
            if not (target / _ADAPTER_FOLDER).exists():
                raise


def _settle_adapter(folder: Path, lora: Adapter, *, base: str) -> Adapter | None:
    """Of a run with an adapter the merger has written the base model, and the adapter into a folder of its own. Returns
    what has become of it; None: the run had no adapter.
    """
    adapter = folder / _ADAPTER_FOLDER
    if not adapter.exists():
        return None
    if lora is Adapter.MERGED:
        _merge_adapter(folder, adapter, base=base)
        shutil.rmtree(adapter)
        return lora
    for file in [*folder.glob("*.safetensors*"), folder / "config.json", folder / "generation_config.json"]:
        file.unlink(missing_ok=True)
    for file in adapter.iterdir():
        file.rename(folder / file.name)
    adapter.rmdir()
    config_file = folder / "adapter_config.json"
    config = json.loads(config_file.read_text()) | {"base_model_name_or_path": base}
    config_file.write_text(json.dumps(config, indent=2) + "\n")
    return lora


def _merge_adapter(folder: Path, adapter: Path, *, base: str) -> None:
    """In float32: in bfloat16 the sum would lose what the adapter has learned. A checkpoint of
    `actor_rollout_ref.actor.checkpoint.save_lora_only` has no base model: that of the training is taken.
    """
    import torch
    from peft import PeftModel
    from safetensors import safe_open
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    def has_weights(file: Path) -> bool:
        with safe_open(file, framework="pt") as tensors:
            return bool(tensors.keys())

    architecture = AutoConfig.from_pretrained(folder).architectures[0]
    loader = AutoModelForImageTextToText if "ForConditionalGeneration" in architecture else AutoModelForCausalLM
    weights = folder if any(map(has_weights, folder.glob("*.safetensors"))) else base
    model = loader.from_pretrained(weights, dtype=torch.float32)
    merged = PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    merged.to(torch.bfloat16).save_pretrained(folder)


def _describe(folder: Path, saved: SavedRun, complete: Complete, *, adapter: Adapter | None) -> None:
    try:
        run = Run.load(saved.record)
    except NoRecord:  # of checkpoints that lie apart from their run's record
        run = None
    base = complete.model.path if complete.model is not None else ""
    card = model_card(run, step=complete.step, base=base, is_adapter=adapter is Adapter.APART)
    (folder / "README.md").write_text(card, encoding="utf-8")
    for weights in folder.glob("*.safetensors"):  # which safetensors writes for its user alone
        weights.chmod((folder / "README.md").stat().st_mode & 0o777)
    if saved.description is not None:
        shutil.copyfile(saved.record / RUN_FILE, folder / RUN_FILE)


if __name__ == "__main__":
    main()
