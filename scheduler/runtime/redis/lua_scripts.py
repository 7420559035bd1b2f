"""Lua scripts: atomic changes in Redis. All run on Redis 6.2."""

from __future__ import annotations

from typing import Final

#: KEYS epoch, leader · ARGV name, lease milliseconds, epoch floor → epoch, or 0 when led by another.
ELECT: Final = """
local holder = redis.call('GET', KEYS[2])
if holder and holder ~= ARGV[1] then return 0 end
local epoch = math.max(tonumber(redis.call('GET', KEYS[1]) or '0'), tonumber(ARGV[3])) + 1
redis.call('SET', KEYS[1], string.format('%d', epoch))
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
return epoch
"""

_CHECK_EPOCH: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return redis.error_reply('FENCED') end
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
"""

#: KEYS epoch, leader · ARGV epoch, name, lease milliseconds.
RENEW: Final = _CHECK_EPOCH + "return 1"

#: KEYS leader · ARGV name. Deletes the key of this leader only, not that of a successor.
RESIGN: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
"""

#: KEYS epoch, leader, journal, inbox, node streams… · ARGV epoch, name, lease milliseconds,
#: journal entry, inbox id up to which everything is handled, commands per node… → journal id.
COMMIT: Final = (
    _CHECK_EPOCH
    + """
local id = redis.call('XADD', KEYS[3], '*', 'e', ARGV[4])
for k = 5, #KEYS do redis.call('XADD', KEYS[k], '*', 'c', ARGV[k + 1]) end
redis.call('XTRIM', KEYS[4], 'MINID', ARGV[5])
return id
"""
)

#: The same for a pass that sets a message aside. KEYS epoch, leader, journal, inbox, letters, node
#: streams… · ARGV epoch, name, lease milliseconds, journal entry, inbox id, name of the letter,
#: letter, commands per node… → journal id.
COMMIT_ASIDE: Final = (
    _CHECK_EPOCH
    + """
local id = redis.call('XADD', KEYS[3], '*', 'e', ARGV[4])
redis.call('XTRIM', KEYS[4], 'MINID', ARGV[5])
redis.call('HSETNX', KEYS[5], ARGV[6], ARGV[7])
for k = 6, #KEYS do redis.call('XADD', KEYS[k], '*', 'c', ARGV[k + 2]) end
return id
"""
)

#: KEYS epoch, leader, target · ARGV epoch, name, lease milliseconds, value.
PUT: Final = _CHECK_EPOCH + "return redis.call('SET', KEYS[3], ARGV[4])"

#: KEYS epoch, leader, letters · ARGV epoch, name, lease milliseconds, name of the letter, letter.
SET_ASIDE: Final = _CHECK_EPOCH + "return redis.call('HSETNX', KEYS[3], ARGV[4], ARGV[5])"

#: Appends the messages of many requests as one entry, except those of requests whose
#: Idempotency-Key was seen. KEYS inbox, then the key of each request ('' for none) · ARGV seconds
#: to remember, then for each request: what to remember, number of messages, messages…
#: → for each request what was remembered before, or false.
SUBMIT: Final = """
local fields, seen, at = {}, {}, 2
for r = 2, #KEYS do
  local count = tonumber(ARGV[at + 1])
  local before = false
  if KEYS[r] ~= '' then
    before = redis.call('GET', KEYS[r])
    if not before then redis.call('SET', KEYS[r], ARGV[at], 'EX', ARGV[1]) end
  end
  if not before then
    for m = at + 2, at + 1 + count do
      fields[#fields + 1] = string.format('%d', #fields / 2)
      fields[#fields + 1] = ARGV[m]
    end
  end
  seen[r - 1] = before
  at = at + 2 + count
end
if #fields > 0 then redis.call('XADD', KEYS[1], '*', unpack(fields)) end
return seen
"""
