"""The network service: one process per robot."""

if __name__ == "service":  # the folder itself was put on sys.path
    raise ImportError("import wmrt.service: the bare name service belongs to nobody")
