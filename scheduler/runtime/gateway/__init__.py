"""The gateway: the hot endpoints as a small raw ASGI application in front of Django.

Theory of operation. Every web process runs one. It holds no truth: it turns requests into inbox
messages, follows the journal to answer those that wait, asks the loop about live actions and reads
rows about old ones. Requests of one moment share one append (`submitter`), and every web process
reads the journal once (`tail`), however many clients wait. Bearer tokens only, no cookies, so
there is nothing to forge across sites. What it does not serve is passed on to Django.

A question travels through the inbox behind what the same process submitted before, so a client
that submits and then asks always finds its action.
"""
