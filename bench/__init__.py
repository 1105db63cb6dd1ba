"""What was measured, and how: a folder for each subject, `prompts/` to measure with, `results/` with machine and date.

A script runs as `python bench/SUBJECT/NAME.py` from anywhere. What it imports from other files here it names in full
(`from bench.gpu.timing import ratios`), after it has put the checkout's root on `sys.path`. What scripts share is in
measured.py: paths, options, the machine, spreads, tables.
"""
