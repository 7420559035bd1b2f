"""Lua scripts: atomic changes in Redis. All run on Redis 6.2."""

from __future__ import annotations

from typing import Final

#: Actions of one project in the inbox, about. What it submits beyond waits in a list of its own, of which projects take
#: turns: no project delays another by more than this.
INBOX_ACTIONS: Final = 512
#: Messages of one project in one turn.
TURN_MESSAGES: Final = 32

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
#: journal entry, inbox id up to which everything is handled, commands per node… → journal id, id of
#: the entry of each node….
COMMIT: Final = (
    _CHECK_EPOCH
    + """
local ids = {redis.call('XADD', KEYS[3], '*', 'e', ARGV[4])}
for k = 5, #KEYS do ids[k - 3] = redis.call('XADD', KEYS[k], '*', 'c', ARGV[k + 1]) end
redis.call('XTRIM', KEYS[4], 'MINID', ARGV[5])
return ids
"""
)

#: The same for a pass that sets a message aside. KEYS epoch, leader, journal, inbox, letters, node
#: streams… · ARGV epoch, name, lease milliseconds, journal entry, inbox id, name of the letter,
#: letter, commands per node… → journal id, id of the entry of each node….
COMMIT_ASIDE: Final = (
    _CHECK_EPOCH
    + """
local ids = {redis.call('XADD', KEYS[3], '*', 'e', ARGV[4])}
redis.call('XTRIM', KEYS[4], 'MINID', ARGV[5])
redis.call('HSETNX', KEYS[5], ARGV[6], ARGV[7])
for k = 6, #KEYS do ids[k - 4] = redis.call('XADD', KEYS[k], '*', 'c', ARGV[k + 2]) end
return ids
"""
)

#: Stores what `COMMIT` would write, for the time until replicas have it: nothing reads it but `RELEASE`. The id of its entries is fixed
#: here, so that they are the same whichever master releases them.
#: KEYS epoch, leader, journal, held · ARGV epoch, name, lease milliseconds, journal entry, inbox id, name of a letter ('' for none),
#: letter, then for each node: its stream, commands.
HOLD: Final = (
    _CHECK_EPOCH
    + """
local last = redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)
local after = #last > 0 and last[1][1] or '0-0'
local ms, seq = string.match(after, '(%d+)-(%d+)')
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local id = string.format('%.0f-0', now)
if now <= tonumber(ms) then id = string.format('%s-%.0f', ms, seq + 1) end
redis.call('DEL', KEYS[4])
redis.call('RPUSH', KEYS[4], after, id)
for k = 4, #ARGV do redis.call('RPUSH', KEYS[4], ARGV[k]) end
return id
"""
)

#: Writes what is held, unless the journal has gone on without it (a loop of an earlier version does not know it).
#: KEYS epoch, leader, journal, inbox, letters, held · ARGV epoch, name, lease milliseconds → as `COMMIT`; nothing when none is held.
RELEASE: Final = (
    _CHECK_EPOCH
    + """
local held = redis.call('LRANGE', KEYS[6], 0, -1)
redis.call('DEL', KEYS[6])
local last = redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)
if held[1] ~= (#last > 0 and last[1][1] or '0-0') then return {} end
local function add(stream, field, body)
  local done = redis.pcall('XADD', stream, held[2], field, body)
  if type(done) == 'table' then done = redis.call('XADD', stream, '*', field, body) end
  return done
end
local ids = {add(KEYS[3], 'e', held[3])}
redis.call('XTRIM', KEYS[4], 'MINID', held[4])
if held[5] ~= '' then redis.call('HSETNX', KEYS[5], held[5], held[6]) end
for k = 7, #held, 2 do ids[#ids + 1] = add(held[k], 'c', held[k + 1]) end
return ids
"""
)

#: KEYS epoch, leader, target · ARGV epoch, name, lease milliseconds, value.
PUT: Final = _CHECK_EPOCH + "return redis.call('SET', KEYS[3], ARGV[4])"

#: Makes an offered snapshot the stored one; returns 0 when the offer is another one, or the journal has not the entry that it was taken from.
#: KEYS epoch, leader, offer, offered, snapshot, journal · ARGV epoch, name, lease milliseconds, offer, id of the entry, entry.
ADOPT: Final = (
    _CHECK_EPOCH
    + """
if redis.call('GET', KEYS[3]) ~= ARGV[4] then return 0 end
local found = redis.call('XRANGE', KEYS[6], ARGV[5], ARGV[5])[1]
if not found or found[2][2] ~= ARGV[6] then return 0 end
if not string.find(redis.call('GETRANGE', KEYS[4], 0, 255), ARGV[5], 1, true) then return 0 end
redis.call('RENAME', KEYS[4], KEYS[5])
redis.call('DEL', KEYS[3])
return 1
"""
)

#: KEYS epoch, leader, letters · ARGV epoch, name, lease milliseconds, name of the letter, letter.
SET_ASIDE: Final = _CHECK_EPOCH + "return redis.call('HSETNX', KEYS[3], ARGV[4], ARGV[5])"

#: Moves up to ``room`` messages that wait outside the inbox into it, as one entry, in turns of projects.
_ADMIT: Final = f"""
local function admit(inbox, arrivals, room)
  local fields = {{}}
  while room > 0 do
    local project = redis.call('LPOP', arrivals)
    if not project then break end
    local own = arrivals .. ':' .. project
    for _, message in ipairs(redis.call('LPOP', own, math.min(room, {TURN_MESSAGES})) or {{}}) do
      fields[#fields + 1] = string.format('%d', #fields / 2)
      fields[#fields + 1] = message
      room = room - 1
    end
    if redis.call('EXISTS', own) == 1 then redis.call('RPUSH', arrivals, project) end
  end
  if #fields > 0 then redis.call('XADD', inbox, '*', unpack(fields)) end
  return #fields / 2
end
"""

#: KEYS inbox, arrivals → messages that were moved; to be called until it is 0 (without a leader only).
ADMIT_ALL: Final = _ADMIT + f"return admit(KEYS[1], KEYS[2], {INBOX_ACTIONS})"

#: Moves the messages of an entry of a node's reports into the inbox; without messages the entry is dropped. The lease is
#: not renewed: a loop that hangs is replaced.
#: KEYS epoch, inbox, reports, revoked nodes · ARGV epoch, id of the entry, node, fields and values of the messages… → 1, or 0
#: when it was moved or the node is revoked.
MOVE_REPORTS: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return redis.error_reply('FENCED') end
if redis.call('SISMEMBER', KEYS[4], ARGV[3]) == 1 then return 0 end
if redis.call('XDEL', KEYS[3], ARGV[2]) == 0 then return 0 end
if #ARGV > 3 then redis.call('XADD', KEYS[2], '*', unpack(ARGV, 4)) end
return 1
"""

#: States what is queued of some projects, and takes what was handled from what arrives (`queue_accounts`).
#: KEYS epoch, leader, loads, inbox, arrivals · ARGV epoch, name, lease milliseconds, inbox id, 1 to forget what was
#: stated before, then for each project: its name, queued actions and bytes, handled actions and bytes.
#: Moves messages that wait outside the inbox into it, in turns of projects, while it has room.
#: → 1 when nothing arrives, 2 when messages waited outside the inbox, else 0.
STATE_QUEUED: Final = (
    _CHECK_EPOCH
    + _ADMIT
    + """
local loads, inbox, after = KEYS[3], KEYS[4], ARGV[4]
if ARGV[5] == '1' then
  for _, field in ipairs(redis.call('HKEYS', loads)) do
    local kind = string.sub(field, 1, 3)
    if kind == 'qn:' or kind == 'qb:' then redis.call('HDEL', loads, field) end
  end
end
local read = redis.call('XLEN', inbox) < 2 and #redis.call('XRANGE', inbox, '(' .. after, '+', 'COUNT', 1) == 0
local outside = redis.call('LRANGE', KEYS[5], 0, -1)
local empty = read and #outside == 0
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
local unread = 0
if not read then
  for _, p in ipairs(outside) do
    local arriving = tonumber(redis.call('HGET', loads, 'an:' .. p)) or 0
    unread = unread + math.max(0, arriving - redis.call('LLEN', KEYS[5] .. ':' .. p))
  end
end
"""
    + f"if #outside > 0 then admit(inbox, KEYS[5], {INBOX_ACTIONS} - unread) end\n"
    + "return empty and 1 or #outside > 0 and 2 or 0"
)

#: Appends the messages of many requests as one entry, except those of requests whose Idempotency-Key was
#: seen, and those that would pass a limit of a project (`domain.project_limits`). Messages of a project that has
#: `INBOX_ACTIONS` in the inbox wait outside, and so does what follows them.
#: KEYS inbox, loads, arrivals, then the key of each request ('' for none) · ARGV seconds to remember, then for each
#: request: what to remember, the project whose messages it follows ('' for none), number of loads, loads…, number of
#: messages, messages…; a load is project, actions, bytes, then most queued actions, most queued bytes, actions a
#: second, burst, most arriving. Messages of a request with loads are the actions of each load in turn.
#: → for each request what was remembered before, or false, or for a refused one a list: the limit,
#: project, what it has, milliseconds until it may be sent again.
SUBMIT: Final = (
    f"local most = {INBOX_ACTIONS}\n"
    + """
local fields, seen, at, projects, now = {}, {}, 2, {}, nil
local arrivals, outside = KEYS[3], {}
local some = redis.call('EXISTS', arrivals) == 1

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

local function waits(project)
  if outside[project] == nil then
    outside[project] = some and project ~= '' and redis.call('EXISTS', arrivals .. ':' .. project) == 1
  end
  return outside[project]
end

local function put(project, first, last)
  if first > last then return end
  if waits(project) then
    redis.call('RPUSH', arrivals .. ':' .. project, unpack(ARGV, first, last))
    return
  end
  for m = first, last do
    fields[#fields + 1] = string.format('%d', #fields / 2)
    fields[#fields + 1] = ARGV[m]
  end
end

for r = 4, #KEYS do
  local first, loads = at + 3, tonumber(ARGV[at + 2])
  local count_at = first + 8 * loads
  local message, last = count_at + 1, count_at + tonumber(ARGV[count_at])
  local before = false
  if KEYS[r] ~= '' then before = redis.call('GET', KEYS[r]) end
  for i = first, count_at - 1, 8 do before = before or refusal(i) end
  if not before then
    if KEYS[r] ~= '' then redis.call('SET', KEYS[r], ARGV[at], 'EX', ARGV[1]) end
    for i = first, count_at - 1, 8 do
      local p, actions, bytes = standing(i), tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
      if p.arriving >= most and not waits(ARGV[i]) then
        redis.call('RPUSH', arrivals, ARGV[i])
        outside[ARGV[i]] = true
      end
      put(ARGV[i], message, math.min(last, message + actions - 1))
      message = message + actions
      p.actions, p.bytes, p.tokens = p.actions + actions, p.bytes + bytes, p.tokens - actions
      p.arriving, p.arriving_bytes, p.new = p.arriving + actions, p.arriving_bytes + bytes, 1
    end
    put(ARGV[at + 1], message, last)
  end
  seen[r - 3] = before
  at = last + 1
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
)

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
