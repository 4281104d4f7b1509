"""Quantization: formats, recipes, packed tensors and the bytes they cost."""

if __name__ == "quant":  # the folder itself was put on sys.path
    raise ImportError("import wmrt.quant: the bare name quant belongs to nobody")
