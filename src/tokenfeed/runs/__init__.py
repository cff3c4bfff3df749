"""Runs: what a training run delivered, from its run file.

file         the run file: written, read, and which steps and rows deliver which samples
origins      the views that a run was over, opened again and checked
tracing      rows, traced to shards and documents; documents, and the rows that deliver them
run          `Run`, which puts these together
sets         the samples that a run has delivered, and those it never has, as views
comparison   where two runs part, and why
"""
