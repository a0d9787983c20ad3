"""What the recipe calls of verl's training engines is there in each of them. Their sources are read: Megatron's and
VeOmni's cannot be imported without these packages.
"""

import ast
import hashlib
from functools import cache
from pathlib import Path

import pytest
import verl
from verl.utils.checkpoint import fsdp_checkpoint_manager

from recipe.async_dapo.record.checkpoint_folder import _RANK_FILE
from recipe.async_dapo.startup.verl_options import TRAINING_ENGINES

VERL = Path(verl.__file__).parent
FOLDERS = {"dp": "fsdp", "megatron": "megatron", "veomni": "veomni"}  # of verl's `model_engine`
# What the recipe, or verl's worker for it, calls -> the parameters that are given; all others have a default.
CALLED = {
    "get_per_tensor_param": (),
    "is_param_offload_enabled": (),
    "to": ("device", "model", "optimizer", "grad"),
    "save_checkpoint": ("local_path", "hdfs_path", "global_step", "max_ckpt_to_keep"),
    "load_checkpoint": ("local_path", "hdfs_path", "del_local_after_load"),
    "get_data_parallel_rank": (),
    "get_data_parallel_size": (),
    "is_mp_src_rank_with_outputs": (),
}
# Bodies that were read: where the weights are afterwards, and which ranks gather them.
READ = {"dp": "8d9259c2afc9", "megatron": "200dd4aa6b7c", "veomni": "31ef3a0b9726"}


@cache
def classes_of(engine: str) -> dict[str, ast.ClassDef]:
    """Those of an engine, and of FSDP's, which VeOmni's are made of."""
    files = [VERL / "workers/engine" / folder / "transformer_impl.py" for folder in ("fsdp", FOLDERS[engine])]
    nodes = (node for file in files for node in ast.parse(file.read_text()).body)
    return {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}


def trains(engine: str) -> str:
    """The class that verl looks up for language models by the engine's strategy."""
    for name, node in classes_of(engine).items():
        for call in (found for found in node.decorator_list if isinstance(found, ast.Call)):
            keywords = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
            backends = keywords.get("backend")
            known = {backends} if isinstance(backends, str) else set(backends)
            if keywords.get("model_type") == "language_model" and known == set(TRAINING_ENGINES[engine]):
                return name
    raise LookupError(engine)


def method(engine: str, name: str) -> ast.FunctionDef:
    classes, line = classes_of(engine), [trains(engine)]
    for owner in line:
        node = classes.get(owner)
        for found in node.body if node else ():
            if isinstance(found, ast.FunctionDef) and found.name == name:
                return found
        line += [base.id for base in node.bases if isinstance(base, ast.Name)] if node else []
    raise LookupError(f"{engine}: {name}")


@pytest.mark.parametrize("engine", TRAINING_ENGINES)
def test_each_training_engine_has_what_the_recipe_calls(engine):
    for name, wanted in CALLED.items():
        arguments = method(engine, name).args
        names = [argument.arg for argument in arguments.args]
        assert names[: len(wanted) + 1] == ["self", *wanted], name
        assert len(names) - len(arguments.defaults) <= (2 if wanted else 1), name


@pytest.mark.parametrize("engine", TRAINING_ENGINES)
def test_the_weights_come_name_by_name_beside_the_adapters_options(engine):
    body = method(engine, "get_per_tensor_param")
    own = [node for node in ast.walk(body) if isinstance(node, ast.Return)]
    assert own and all(isinstance(node.value, ast.Tuple) and len(node.value.elts) == 2 for node in own)
    read = "".join(ast.unparse(method(engine, name)) for name in ("get_per_tensor_param", "to", "save_checkpoint"))
    assert hashlib.blake2b(read.encode(), digest_size=6).hexdigest() == READ[engine], "read it again"


@pytest.mark.parametrize("engine", ["megatron", "veomni"])
def test_routes_are_replayed_from_the_field_that_agent_loops_fill(engine):
    source = "".join(ast.unparse(node) for node in classes_of(engine).values())
    assert "get('routed_experts', None)" in source and "router_replay.mode" in source
    assert "router_replay" not in ast.unparse(classes_of("dp")["FSDPEngineWithLMHead"]), "FSDP has a replay of its own"


def test_fsdp_and_veomni_name_their_files_after_the_number_of_ranks():
    source = Path(fsdp_checkpoint_manager.__file__).read_text()
    [name] = {part for part in source.split('"') if part.startswith("model_world_size_")}
    assert _RANK_FILE.fullmatch(name.replace("{self.world_size}", "8").replace("{self.rank}", "0"))
    for engine in ("dp", "veomni"):
        assert "FSDPCheckpointManager(" in ast.unparse(method(engine, "initialize"))
