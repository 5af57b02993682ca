"""An ONNX model and its external data."""

from fuzz_harness import Target, fuzz

TARGET = Target("onnx", ("m.onnx", "m.onnx.data"), "m.onnx")

if __name__ == "__main__":
    fuzz(TARGET)
