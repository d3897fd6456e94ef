"""Measuring operators, collectives and waits on real devices: the only part that touches one.

In reading order: `clocks`, `meters` (and `nvml_meter`, `replay_meter`, `simulated_meter`), `samples`, `sampling`, `window`,
`environment`, `measurement`, `kernels`, `collectives`, `waits`, `runners`, `plans`, `campaign`, `meetings`, `runs`, `start`.
"""
