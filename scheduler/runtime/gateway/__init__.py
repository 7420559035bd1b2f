"""Gateway: an ASGI application in front of Django that serves the endpoints of the control path.

Theory of operation. Every web process runs one. It stores nothing: it turns requests into inbox
messages, follows the journal to resolve waiting requests, queries the loop about live actions and
reads rows of finished ones. Concurrent requests share one append (`submitter`), and every web
process reads the journal once (`journal_tail`), however many clients wait. It accepts bearer tokens
and no cookies, so requests cannot be forged across sites. All other requests are passed to Django.

A query follows earlier submissions of the same process through the inbox, so a client that submits
and then queries finds its action.
"""
