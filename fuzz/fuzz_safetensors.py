"""One safetensors file."""

from fuzz_harness import Target, fuzz

TARGET = Target("safetensors", ("model.safetensors",), "model.safetensors")

if __name__ == "__main__":
    fuzz(TARGET)
