"""Traces that other systems write, as recordings of coding agents or as requests to a language model.

| format | a file is | gives | it has no |
|---|---|---|---|
| tangram | our recordings, one trajectory a line | recordings | |
| requests | our CSV ``t_ms,input_tokens,output_tokens`` | requests | |
| journal | entries of our journal, one a line | recordings | length of outputs |
| mooncake | one request a line: ``timestamp`` (ms), ``input_length``, ``output_length``, ``hash_ids`` | requests | |
| bailian | the same with ``chat_id``; ``timestamp`` in seconds | requests | |
| azure | CSV with ``TIMESTAMP,ContextTokens,GeneratedTokens`` | requests | |
| swe-agent | one JSON object with ``trajectory`` and ``info`` (`.traj`) | recordings | think times, CPU, memory; old ones: durations |
| mini-swe-agent | one JSON object with ``messages`` (`.traj.json`) | recordings | CPU, memory; old ones: times |
| verl | one sample a line: ``input``, ``output``, ``score``, ``step`` | recordings or requests | times, token counts |

`reading.read_sources` finds the format by the content and reads it; what a source does not contain is modelled
by `modelled`, and the result says so in sentences. Sources of the schemas: each reader names its own.
"""
