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

#: States what is queued of some projects, and takes what was handled from what arrives (`queue_accounts`).
#: KEYS epoch, leader, loads, inbox · ARGV epoch, name, lease milliseconds, inbox id, 1 to forget what was
#: stated before, then for each project: its name, queued actions and bytes, handled actions and bytes.
#: → 1 when the inbox was empty, so that nothing arrives.
STATE_QUEUED: Final = (
    _CHECK_EPOCH
    + """
local loads, inbox, after = KEYS[3], KEYS[4], ARGV[4]
if ARGV[5] == '1' then
  for _, field in ipairs(redis.call('HKEYS', loads)) do
    local kind = string.sub(field, 1, 3)
    if kind == 'qn:' or kind == 'qb:' then redis.call('HDEL', loads, field) end
  end
end
local empty = redis.call('XLEN', inbox) < 2 and #redis.call('XRANGE', inbox, '(' .. after, '+', 'COUNT', 1) == 0
for i = 6, #ARGV, 5 do
  local p = ARGV[i]
  local before = redis.call('HMGET', loads, 'an:' .. p, 'ab:' .. p)
  local actions, bytes = 0, 0
  if not empty then
    actions = math.max(0, (tonumber(before[1]) or 0) - ARGV[i + 3])
    bytes = math.max(0, (tonumber(before[2]) or 0) - ARGV[i + 4])
  end
  redis.call('HSET', loads, 'qn:' .. p, ARGV[i + 1], 'qb:' .. p, ARGV[i + 2],
    'an:' .. p, string.format('%d', actions), 'ab:' .. p, string.format('%d', bytes))
end
return empty and 1 or 0
"""
)

#: Appends the messages of many requests as one entry, except those of requests whose Idempotency-Key was
#: seen, and those that would pass a limit of a project (`domain.project_limits`).
#: KEYS inbox, loads, then the key of each request ('' for none) · ARGV seconds to remember, then for each
#: request: what to remember, number of loads, loads…, number of messages, messages…; a load is project,
#: actions, bytes, then most queued actions, most queued bytes, actions a second, burst, most arriving.
#: → for each request what was remembered before, or false, or for a refused one a list: the limit,
#: project, what it has, milliseconds until it may be sent again.
SUBMIT: Final = """
local fields, seen, at, projects, now = {}, {}, 2, {}, nil

local function standing(i)
  local name = ARGV[i]
  if projects[name] then return projects[name] end
  if not now then
    local t = redis.call('TIME')
    now = t[1] + t[2] / 1000000
  end
  local f = redis.call('HMGET', KEYS[2], 'qn:' .. name, 'qb:' .. name, 'an:' .. name, 'ab:' .. name,
    't:' .. name, 's:' .. name)
  for k = 1, 6 do f[k] = tonumber(f[k]) end
  local burst = tonumber(ARGV[i + 6])
  local p = {
    actions = (f[1] or 0) + (f[3] or 0), bytes = (f[2] or 0) + (f[4] or 0),
    arriving = f[3] or 0, arriving_bytes = f[4] or 0, new = 0,
    tokens = math.min(burst, (f[5] or burst) + math.max(0, now - (f[6] or now)) * ARGV[i + 5]),
  }
  projects[name] = p
  return p
end

local function refusal(i)
  local p, actions = standing(i), tonumber(ARGV[i + 1])
  if p.actions + actions > tonumber(ARGV[i + 3]) then
    return {'actions', ARGV[i], string.format('%d', p.actions), 1000}
  elseif p.bytes + ARGV[i + 2] > tonumber(ARGV[i + 4]) then
    return {'bytes', ARGV[i], string.format('%d', p.bytes), 1000}
  elseif p.arriving + actions > tonumber(ARGV[i + 7]) then
    return {'arriving', ARGV[i], string.format('%d', p.arriving), 1000}
  elseif p.tokens < actions then
    return {'rate', ARGV[i], '0', math.ceil(1000 * (actions - p.tokens) / ARGV[i + 5])}
  end
  return false
end

for r = 3, #KEYS do
  local first, loads = at + 2, tonumber(ARGV[at + 1])
  local count_at = first + 8 * loads
  local count = tonumber(ARGV[count_at])
  local before = false
  if KEYS[r] ~= '' then before = redis.call('GET', KEYS[r]) end
  for i = first, count_at - 1, 8 do before = before or refusal(i) end
  if not before then
    if KEYS[r] ~= '' then redis.call('SET', KEYS[r], ARGV[at], 'EX', ARGV[1]) end
    for i = first, count_at - 1, 8 do
      local p, actions, bytes = standing(i), tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
      p.actions, p.bytes, p.tokens = p.actions + actions, p.bytes + bytes, p.tokens - actions
      p.arriving, p.arriving_bytes, p.new = p.arriving + actions, p.arriving_bytes + bytes, 1
    end
    for m = count_at + 1, count_at + count do
      fields[#fields + 1] = string.format('%d', #fields / 2)
      fields[#fields + 1] = ARGV[m]
    end
  end
  seen[r - 2] = before
  at = count_at + 1 + count
end
for name, p in pairs(projects) do
  if p.new == 1 then
    redis.call('HSET', KEYS[2], 'an:' .. name, string.format('%d', p.arriving),
      'ab:' .. name, string.format('%d', p.arriving_bytes),
      't:' .. name, string.format('%.3f', p.tokens), 's:' .. name, string.format('%.6f', now))
  end
end
if #fields > 0 then redis.call('XADD', KEYS[1], '*', unpack(fields)) end
return seen
"""

#: Takes or renews the lease of the keeper of fleets.
#: KEYS lease · ARGV name, milliseconds → 1, or 0 when another one has it.
KEEP: Final = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""

_CHECK_KEEPER: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return redis.error_reply('FENCED') end
"""

#: KEYS lease, inbox · ARGV name, fields and values of the entry… → its id.
KEEPER_APPEND: Final = _CHECK_KEEPER + "return redis.call('XADD', KEYS[2], '*', unpack(ARGV, 2))"

#: KEYS lease, hash · ARGV name, field, value.
KEEPER_PUT: Final = _CHECK_KEEPER + "return redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])"

#: KEYS lease, hash · ARGV name, field.
KEEPER_FORGET: Final = _CHECK_KEEPER + "return redis.call('HDEL', KEYS[2], ARGV[2])"
