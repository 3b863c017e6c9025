-- Sliding logs of one key, for all quotas of its policy. Either `log.lua` follows, which decides
-- and charges, or `log_back.lua`, which refunds.
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
--
-- ARGV  number of quotas
--       for each quota: window, us; limit; the most counting entries; slack, us
--       the quota of the metas, from 1; 0 without metas
--       the arguments of the following part, a multiple of three
--       [now]   instead of TIME, us; tests only
--
-- Every number stays below 2^53, where doubles are exact: TIME is 1.8e15, limits and costs at most
-- 1e15. So floor(a / b) and a % 2^52 are exact too.

local PAIR, WHOLE, FULL = 16, 4503599627370496, 4000000000000000
-- EXACT bounds instants. MOST_BYTES bounds a log: 1,048,576 pairs.
local EXACT, MOST_BYTES = 9007199254740992, 16777216
local HEAD, HEAD_ENDS = 65 * PAIR, '1039'

local quotas = tonumber(ARGV[1])
local metas_of = tonumber(ARGV[2 + 4 * quotas])
local runs = 3 + 4 * quotas
local now
if (#ARGV - runs) % 3 == 0 then
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

-- The log of a quota; nil if it is corrupt.
local function open(q)
  local log = {key = KEYS[q]}
  for at, name in ipairs({'window', 'limit', 'most', 'slack'}) do
    log[name] = tonumber(ARGV[4 * q - 3 + at])
  end
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

