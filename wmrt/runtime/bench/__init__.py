"""Latency of whole steps: arms that run one, the schedule they run on, and the machine under them.

`wmrt bench` is made of it; nothing here is imported by a step.
"""
