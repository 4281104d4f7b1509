"""Gymnasium environments. The only place in wmrt with simulators."""

if __name__ == "envs":  # the folder itself was put on sys.path
    raise ImportError("import wmrt.envs: the bare name envs belongs to nobody")

from wmrt.envs.registration import register_environments

register_environments()
