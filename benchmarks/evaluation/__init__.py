"""The evaluation of ARL-Tangram §6, simulated again: the paper's number, ours, and the rivals'.

Theory of operation. A *figure* names the `Case`s that it needs (a workload, a cluster, a policy, a
seed) and, given their results, makes its series and *claims*: a sentence, the paper's number, ours.
`runs` simulates what the chosen figures need, each case once, over several processes; `page` writes
one HTML with inline plots, and the same as JSON.

Rules
1. All of it is simulated, by `simulator`, and says so. What was measured stands elsewhere
   (`benchmarks/results`), and no number here is mixed with one from there.
2. Nothing is tuned per figure: workloads and baselines are those of `simulator.workloads` and
   `simulator.baselines` (and the model servers beside this page), whose parameters carry their sources.
3. An interval is the smallest and the largest over the seeds; the number is their mean.
4. Where we fall short of the paper the claim says so; what cannot be simulated yet is listed.
"""
