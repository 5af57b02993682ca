"""A GGUF model, of one file or two."""

from fuzz_harness import Target, fuzz

TARGET = Target("gguf", ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf"), "m-00001-of-00002.gguf")

if __name__ == "__main__":
    fuzz(TARGET)
