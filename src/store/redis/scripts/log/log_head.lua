-- Sliding logs: those of one key, of all quotas of its policy. What is done with them follows: `log.lua` decides and
-- charges, `log_back.lua` takes back.
--
-- A log is a String of pairs of numbers, 8 bytes each, big-endian. The first pair: until when a reservation may be
-- taken back, and the sum of all costs before the first entry. Then the entries, oldest first: an instant, us, and the
-- sum of all costs up to it. So what counts is one subtraction; the first entry that counts, and the one whose leaving
-- makes room, are found by bisection; a charge is one APPEND. Entries that have left are dropped when they are half of
-- the log, so each is moved about once. They stay for a slack, for a clock that steps back finds them inside of the
-- window again.
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
--       the metas, if they are touched
-- ARGV  number of quotas
--       for each quota  window, us; limit; the most entries that may count; slack, us
--       which quota the metas are of, from 1; 0 when they are not touched
--       what follows here is told there; a multiple of three of them
--       [now]           instead of TIME, us; tests only
--
-- Every number stays below 2^53 (TIME is 1.8e15, limits and costs at most 1e15), where doubles are exact; so are
-- floor(a / b) for such a and b, and a % 2^52.

local PAIR, WHOLE, FULL = 16, 4503599627370496, 4000000000000000
-- Instants are exact below; no log has more bytes: 1,048,576 pairs.
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

-- The pair at a place: the first is 0, entries are from 1. Most logs are short, and were read at once.
local function pair(log, place)
  local from = place * PAIR
  if from + PAIR <= #log.head then
    return struct.unpack('>I8I8', log.head, from + 1)
  end
  -- A number that the server must write out takes it longer than this.
  local ends = string.format('%d', from + PAIR - 1)
  return struct.unpack('>I8I8', redis.call('GETRANGE', log.key, string.format('%d', from), ends))
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

-- The log of a quota; nil where another program wrote there, or something broke.
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

