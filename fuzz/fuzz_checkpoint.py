"""A directory with a config, an index and shards: what conventions of quantized checkpoints are read from."""

from fuzz_harness import Target, fuzz

TARGET = Target(
    "checkpoint", ("config.json", "model.safetensors.index.json", "model.safetensors", "second.safetensors"), ""
)

if __name__ == "__main__":
    fuzz(TARGET)
