"""Runs: what a training run delivered, from its run file.

file    the run file: written, read, and where its steps begin
legs    the steps that each start ran: those that count, and those that were rolled back
data    the views that a run was over, opened again and checked
trace   rows, traced to shards and documents
find    documents, and the rows that deliver them
run     `Run`, which puts these together
sets    the samples that a run has delivered, and those it never has, as views
diff    where two runs part
"""
