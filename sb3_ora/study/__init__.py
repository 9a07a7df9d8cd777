"""
The experiments of the paper: run them, on one machine or many, and draw their figures and tables from what lies on disk.

``python -m sb3_ora.study run studies/cartpole.yml``, see ``docs/study.md``.
"""
