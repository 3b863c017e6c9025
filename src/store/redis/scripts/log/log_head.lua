-- Sliding logs of one key, for all quotas of its policy. Either `log_check.lua` follows, which
-- decides and charges, or `log.lua` with the other operations.
--
-- A log is a String of pairs of numbers, 8 bytes each, big-endian. The first pair has the instant
-- until which a reservation may be undone, and the sum of all costs before the first entry. The
-- entries follow, oldest first: an instant, us, and the sum of all costs up to it.
--
-- So one subtraction yields the count. Bisection finds the first counting entry, and the one whose
-- expiry makes room. A charge is one APPEND. Expired entries are dropped when they are half of the
-- log, so each moves about once. They stay for a slack: if the clock steps back, they count again.
--
-- Instants never decrease. After a clock stepped back, a charge has the latest entry's instant.
--
-- Sums are kept modulo 2^52. A difference of two is exact while a log contains less than that. A
-- log is rewritten before it would contain more than 4e15. The rewrite keeps at most 1e15 of
-- expired units within the slack, since the slack is no longer than the window. Counting units with
-- the new charge are at most 1e15. Any interval as long as the window has at most 1e15. All of it
-- counted when its last entry was admitted.
--
-- The causes of charges are a List, for the quota with the longest window. A note has the instant,
-- sum and cost, 8 bytes each, and the meta. Instant and sum are the name of the entry. A charge
-- without a meta does not use the list.
--
-- KEYS  for each quota, its log
--       the metas, if they are used
--       [keys of `operation_head.lua`]
--
-- ARGV  number of quotas
--       for each quota: window, us; limit; the most counting entries; slack, us
--       the quota of the metas, from 1; 0 without metas
--       how long after TIME charges are recorded, us
--       the costs, in order, as runs: cost, repetitions, meta (empty: none)
--       [now]   instead of TIME, us; tests only
--       [arguments of `operation_head.lua`]
--
-- Every number stays below 2^53, where doubles are exact: TIME is 1.8e15, limits and costs at most
-- 1e15. So floor(a / b) and a % 2^52 are exact too.

local PAIR, WHOLE, FULL = 16, 4503599627370496, 4000000000000000
-- EXACT bounds instants. MOST_BYTES bounds a log: 1,048,576 pairs.
local EXACT, MOST_BYTES = 9007199254740992, 16777216
local HEAD, HEAD_ENDS = 65 * PAIR, '1039'

local quotas_of_policy = tonumber(ARGV[1])
local quotas = quotas_of_policy
local metas_of, span = tonumber(ARGV[2 + 4 * quotas]), tonumber(ARGV[3 + 4 * quotas])
local first_run = 4 + 4 * quotas
local now
if (#ARGV - first_run) % 3 == 0 then
  now = tonumber(ARGV[#ARGV])
else
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- The logs by their quotas.
local logs = {}

-- The pair at a place. The first is 0, entries begin at 1. Most logs are short and read already.
local function pair(log, place)
  local from = place * PAIR
  if from + PAIR <= #log.head then
    return struct.unpack('>I8I8', log.head, from + 1)
  end
  -- Formatting here costs less than letting the server convert a number.
  local ends = string.format('%d', from + PAIR - 1)
  return struct.unpack('>I8I8', redis.call('GETRANGE', log.key, string.format('%d', from), ends))
end

-- The first place from `low` on where `holds` is true, else `high`. `holds` must stay true after
-- it.
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

-- Reads a log; nil if it is corrupt.
local function read(log)
  log.head = redis.call('GETRANGE', log.key, '0', HEAD_ENDS)
  log.size = #log.head < HEAD and #log.head or redis.call('STRLEN', log.key)
  log.exists = log.size > 0
  if not log.exists then
    log.head, log.size = string.rep('\0', PAIR), PAIR
  end
  if log.size % PAIR ~= 0 or log.size > MOST_BYTES then
    return nil
  end
  log.count = log.size / PAIR - 1
  log.latest, log.sum = pair(log, log.count)
  if log.count == 0 then
    log.latest = 0
  end
  log.live = first(1, log.count + 1, function(place)
    return pair(log, place) + log.window > now
  end)
  log.mark = pair(log, 0)
  local _, gone = pair(log, log.live - 1)
  log.gone = gone
  if log.latest > EXACT or log.mark > EXACT or log.sum >= WHOLE or gone >= WHOLE then
    return nil
  end
  log.units = (log.sum - gone) % WHOLE
  log.entries = log.count - log.live + 1
  return log
end

-- The log of a quota; nil if it is corrupt.
local function open(q)
  local log = {key = KEYS[q]}
  for at, name in ipairs({'window', 'limit', 'most', 'slack'}) do
    log[name] = tonumber(ARGV[4 * q - 3 + at])
  end
  return read(log)
end

-- Opens all logs, and adds their counts to a reply. Returns until when reservations may be undone;
-- nil if one log is corrupt.
local function open_all(reply)
  local marked = 0
  for q = 1, quotas do
    local log = open(q)
    if not log then
      return nil
    end
    logs[q] = log
    reply[#reply + 1] = log.units
    reply[#reply + 1] = log.entries
    reply[#reply + 1] = log.latest
    marked = log.entries > 0 and math.max(marked, log.mark) or marked
  end
  return marked
end

-- The notes that a charge with so many metas may remove; nil if one is corrupt. Another program may
-- have written there, so this precedes the charge.
local function oldest_notes(metas)
  local old = metas > 0 and redis.call('LRANGE', KEYS[quotas_of_policy + 1], 0, 2 * metas - 1) or {}
  for _, note in ipairs(old) do
    if #note < 24 then
      return nil
    end
  end
  return old
end

-- How many of the oldest entries to drop before a charge of these units.
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

-- Appends the charges, and drops expired entries when due. Returns the names of the new entries.
local function append(log, charges, units)
  local dropped = dead(log, units)
  local at, sum, names = math.max(now + span, log.latest), log.sum, {}
  for _, charge in ipairs(charges) do
    for _ = 1, charge.times do
      sum = (sum + charge.cost) % WHOLE
      names[#names + 1] = struct.pack('>I8I8', at, sum)
    end
  end
  local added = table.concat(names)
  -- The log counts until its last entry has expired. One more second covers the edge.
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

-- Adds the causes of the charges. Each removes up to two expired notes; `old` are the first notes.
-- The charge is already made, so nothing here may raise an error.
local function note_charges(log, charges, names, ttl, old)
  local key, noted, name = KEYS[quotas_of_policy + 1], {}, 0
  for _, charge in ipairs(charges) do
    for _ = 1, charge.times do
      name = name + 1
      if charge.meta ~= '' then
        noted[#noted + 1] = names[name] .. struct.pack('>I8', charge.cost) .. charge.meta
      end
    end
  end
  local gone = 0
  for place = 1, math.min(#old, 2 * #noted) do
    if struct.unpack('>I8', old[place]) + log.window + log.slack <= now then
      gone = gone + 1
    end
  end
  if gone > 0 then
    redis.pcall('LTRIM', key, gone, -1)
  end
  redis.pcall('RPUSH', key, unpack(noted))
  redis.pcall('PEXPIRE', key, ttl)
end

-- The instant at which enough units and entries have expired for a cost; 0 for now or never.
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
  return place >= log.live and math.min(pair(log, place) + log.window, EXACT) or 0
end

-- Adds to a reply when cost 1 and each of these costs will fit without more charges, by quota.
local function add_instants(reply, costs, marked)
  local asked = {}
  for _, cost in ipairs({1, unpack(costs)}) do
    if cost > 0 and not asked[cost] then
      asked[cost], reply[#reply + 1] = true, cost
      for q = 1, quotas do
        reply[#reply + 1] = fits_at(logs[q], cost)
      end
    end
  end
  reply[#reply + 1] = marked
end

