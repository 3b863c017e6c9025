-- Sliding log: decides a list of costs for one key against all quotas of its policy, and notes what it admits.
--
-- One script, because deciding and charging must be one step: two trips admit what both callers saw free.
--
-- A log is a String of pairs of numbers, 8 bytes each, big-endian. The first pair: a mark kept for reservations, and
-- the sum of all costs before the first entry. Then the entries, oldest first: an instant, us, and the sum of all costs
-- up to it. So what counts is one subtraction; the first entry that counts, and the one whose leaving makes room, are
-- found by bisection; a charge is one APPEND. Entries that have left are dropped when they are half of the log, so each
-- is moved about once. They stay for a slack, for a clock that steps back finds them inside of the window again.
--
-- Instants never decrease: after a clock stepped back, a charge is noted at the instant of the latest entry.
--
-- Sums are kept modulo 2^52. A difference of two is exact as long as a log holds less than that. It does: it is
-- rewritten before it would hold more than 4e15, and then keeps what left within the slack, which is no longer than the
-- window and so holds at most 1e15, and what counts with what is charged, at most 1e15. (Any interval as long as the
-- window holds at most 1e15: its last entry was admitted when all of it counted.)
--
-- Who caused a charge lies in a List, for the quota with the longest window: instant, sum and cost, 8 bytes each, and
-- the meta. Instant and sum are the name of the entry. A charge without a meta does not touch it.
--
-- KEYS  for each quota, its log
--       the metas, if a cost has one
-- ARGV  number of quotas
--       for each quota  window, us; limit; the most entries that may count; slack, us
--       which quota the metas are of, from 1; 0 when no cost has one
--       the costs, in order, as runs: cost, how many times, meta (empty: none)
--       [now]           instead of TIME, us; tests only
--
-- Reply {TIME, units, entries, latest ...}  what of each quota counted before, and its latest instant: every cost was
--                                admitted, and each fits once more
--       {TIME, units, entries, latest ..., cost, instant of each quota ...}
--                                the same, and for cost 1 and each other cost when it will fit, if nothing more is
--                                charged; 0 where that is now or never
--
-- Every number stays below 2^53 (TIME is 1.8e15, limits and costs at most 1e15), where doubles are exact; so are
-- floor(a / b) for such a and b, and a % 2^52.

local PAIR, WHOLE, FULL = 16, 4503599627370496, 4000000000000000
local HEAD = 65 * PAIR

local quotas = tonumber(ARGV[1])
local noted = tonumber(ARGV[2 + 4 * quotas])
local runs = 3 + 4 * quotas
local now
if (#ARGV - runs) % 3 == 0 then
  now = tonumber(ARGV[#ARGV])
else
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- The pair at a place: the first is 0, entries are from 1. Most logs are short, and were read at once.
local function pair(log, place)
  local from = place * PAIR
  if from + PAIR <= #log.head then
    return struct.unpack('>I8I8', log.head, from + 1)
  end
  return struct.unpack('>I8I8', redis.call('GETRANGE', log.key, from, from + PAIR - 1))
end

-- The first place from `low` on for which `holds`, which then holds for all later ones; `high` if for none before.
local function first(low, high, holds)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if holds(middle) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

local function open(q)
  local log = {key = KEYS[q]}
  for at, name in ipairs({'window', 'limit', 'most', 'slack'}) do
    log[name] = tonumber(ARGV[4 * q - 3 + at])
  end
  log.head = redis.call('GETRANGE', log.key, 0, HEAD - 1)
  log.size = #log.head < HEAD and #log.head or redis.call('STRLEN', log.key)
  log.exists = log.size > 0
  if not log.exists then
    log.head, log.size = string.rep('\0', PAIR), PAIR
  end
  log.count = log.size / PAIR - 1
  log.latest, log.sum = pair(log, log.count)
  if log.count == 0 then
    log.latest = 0
  end
  log.live = first(1, log.count + 1, function(place)
    return pair(log, place) + log.window > now
  end)
  local _, gone = pair(log, log.live - 1)
  log.gone = gone
  log.units = (log.sum - gone) % WHOLE
  log.entries = log.count - log.live + 1
  return log
end

-- How many of the oldest entries to drop before a charge of so many units.
local function dead(log, units)
  if log.latest + log.window + log.slack <= now then
    return log.count
  end
  local _, base = pair(log, 0)
  local full = (log.sum - base) % WHOLE + units > FULL
  if not full and (log.live <= 64 or log.live <= log.count / 2) then
    return 0
  end
  local left = first(1, log.live, function(place)
    return pair(log, place) + log.window + log.slack > now
  end) - 1
  return (full or left >= log.count / 2) and left or 0
end

-- Appends the charges, and drops entries that have left if it is time to; returns the names of the new ones.
local function append(log, charges, units)
  local dropped = dead(log, units)
  local at, sum, names = math.max(now, log.latest), log.sum, {}
  for _, charge in ipairs(charges) do
    for _ = 1, charge.times do
      sum = (sum + charge.cost) % WHOLE
      names[#names + 1] = struct.pack('>I8I8', at, sum)
    end
  end
  local added = table.concat(names)
  -- It says something until its last entry has left; one second more spares the edge.
  local ttl = string.format('%.0f', math.ceil((at + log.window - now) / 1000) + 1000)
  if dropped > 0 or not log.exists then
    local mark = pair(log, 0)
    local _, base = pair(log, dropped)
    local kept = dropped < log.count and redis.call('GETRANGE', log.key, (dropped + 1) * PAIR, -1) or ''
    local whole = struct.pack('>I8I8', mark, base) .. kept .. added
    redis.call('SET', log.key, whole, 'PX', ttl)
    log.head = string.sub(whole, 1, HEAD)
  else
    redis.call('APPEND', log.key, added)
    redis.call('PEXPIRE', log.key, ttl)
    log.head = #log.head < HEAD and string.sub(log.head .. added, 1, HEAD) or log.head
  end
  log.count, log.live = log.count - dropped + #names, log.live - dropped
  log.units, log.entries = log.units + units, log.entries + #names
  return names, ttl
end

-- Adds who caused the charges; for each, up to two that have left go.
local function note(log, charges, names, ttl)
  local key, noted, name = KEYS[quotas + 1], {}, 0
  for _, charge in ipairs(charges) do
    for _ = 1, charge.times do
      name = name + 1
      if charge.meta ~= '' then
        noted[#noted + 1] = names[name] .. struct.pack('>I8', charge.cost) .. charge.meta
      end
    end
  end
  if #noted == 0 then
    return
  end
  local gone = 0
  for _, old in ipairs(redis.call('LRANGE', key, 0, 2 * #noted - 1)) do
    if struct.unpack('>I8', old) + log.window + log.slack <= now then
      gone = gone + 1
    end
  end
  if gone > 0 then
    redis.call('LTRIM', key, gone, -1)
  end
  redis.call('RPUSH', key, unpack(noted))
  redis.call('PEXPIRE', key, ttl)
end

-- When a cost fits: when enough units, and enough entries, have left. 0 if that is now or never.
local function fits_at(log, cost)
  if cost > log.limit then
    return 0
  end
  local place = log.live + log.entries - log.most
  local excess = log.units + cost - log.limit
  if excess > 0 then
    place = math.max(place, first(log.live, log.count, function(place)
      local _, sum = pair(log, place)
      return (sum - log.gone) % WHOLE >= excess
    end))
  end
  return place >= log.live and pair(log, place) + log.window or 0
end

local logs, reply = {}, {now}
for q = 1, quotas do
  local log = open(q)
  logs[q] = log
  reply[#reply + 1] = log.units
  reply[#reply + 1] = log.entries
  reply[#reply + 1] = log.latest
end

-- Decide the costs in order; each is charged to all quotas or to none.
local charges, units, count, dearest, tell = {}, 0, 0, 0, false
local asked, distinct = {[1] = true}, {1}
for r = runs, #ARGV - 2, 3 do
  local cost, times = tonumber(ARGV[r]), tonumber(ARGV[r + 1])
  if cost == 0 then
    tell = true
  else
    local fit = times
    for q = 1, quotas do
      local log = logs[q]
      fit = math.min(fit, math.floor((log.limit - log.units - units) / cost), log.most - log.entries - count)
    end
    if fit > 0 then
      charges[#charges + 1] = {cost = cost, times = fit, meta = ARGV[r + 2]}
      units, count = units + fit * cost, count + fit
    end
    tell = tell or fit < times
    dearest = math.max(dearest, cost)
    if not asked[cost] then
      asked[cost] = true
      distinct[#distinct + 1] = cost
    end
  end
end

for q = 1, quotas do
  local log = logs[q]
  if count > 0 then
    local names, ttl = append(log, charges, units)
    if q == noted then
      note(log, charges, names, ttl)
    end
  end
  tell = tell or log.units + dearest > log.limit or log.entries >= log.most
end

if tell then
  for _, cost in ipairs(distinct) do
    reply[#reply + 1] = cost
    for q = 1, quotas do
      reply[#reply + 1] = fits_at(logs[q], cost)
    end
  end
end
return reply
