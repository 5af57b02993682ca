"""A `.ninfer` artifact, of one file or two."""

from fuzz_harness import Target, fuzz

TARGET = Target("ninfer", ("a.ninfer", "a.ninfer.part-0001"), "a.ninfer")

if __name__ == "__main__":
    fuzz(TARGET)
