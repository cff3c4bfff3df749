"""Runs: what a training run delivered, from its run file.

history      starts of a run, and which steps and rows deliver which samples
file         the run file, written and read
streams      the run file of a stream, which cannot be traced
origins      the views that a run was over, opened again and checked
rows         rows of a step, traced to shards and documents
sightings    documents, and the rows that deliver them
run          `Run`, which puts these together
comparison   where two runs part, and why
"""
