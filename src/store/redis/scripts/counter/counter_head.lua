-- Sliding counters of one key: a plain integer for each tick, as INCR writes it. Other programs may
-- read, raise and lower them. Either `counter_check.lua` follows, which decides and charges, or
-- `counter.lua` with the other operations.
--
-- Reading and charging must be one step. With two trips, two callers spend the same free units.
--
-- KEYS  until when reservations may be undone, us
--       the instant of the last reset, us
--       the ticks, oldest first, that count at any TIME within the bounds
--       [keys of `operation_head.lua`]
--
-- ARGV  numbers, packed as doubles:
--         from, to: the bounds, us, within which the caller expects TIME
--         0, or in tests a substitute for TIME, us
--         the length of a tick, us; the number of the first tick in KEYS
--         how many ticks count before the current one, and after it
--         the life of a count from the start of its tick, us: the longest window that counts it, a
--         tick and 1 s
--         how many ticks before the current one count in the longest window that counts the ticks
--         how long after TIME charges are recorded, us
--         the number of quotas
--         for each quota: how many ticks count before the current one; limit
--         the costs, in order, as runs: cost, repetitions
--       [arguments of `operation_head.lua`]
--
-- Reply {TIME}       TIME is outside from .. to. Nothing was done.
--       {TIME, ''}   A value is no count: 1 to 16 digits, or a negative integer, which counts as 0.
--
-- Every number that decides stays below 2^53, where doubles are exact: TIME is 1.8e15, limits and
-- costs at most 1e15. A larger count of another program denies.

local numbers, read_at, text_of = ARGV[1], struct.unpack, string.format
local from, to, now, tick, first, before, ahead, kept, reach, span, quotas, at = read_at('<ddddddddddd', numbers)
if now == 0 then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
if now < from or now > to then
  return {now}
end

-- The places of the ticks that count are 1 to `size`, and `here` is the current one. A new
-- primary's clock may be behind, so ticks after the current one count too.
local size, here = before + 1 + ahead, before + 1
local skipped = (now - now % tick) / tick - before - first + 2
local found = redis.call('MGET', KEYS[1], KEYS[2], unpack(KEYS, skipped + 1, skipped + size))

local function count_of(text)
  if not string.find(text, '%D') then
    return #text > 0 and #text <= 16 and tonumber(text)
  end
  return #text <= 17 and string.find(text, '^%-%d+$') and 0
end

-- The counts as text for the reply, and the sum up to each.
local told, sums, missing, spoilt, sum = {}, {[0] = 0}, {}, false, 0
for place = 1, size do
  local text = found[place + 2]
  if text then
    local count = count_of(text)
    if count then
      sum = sum + count
      told[place] = count > 0 and text or ''
    else
      spoilt, told[place] = true, ''
    end
  else
    missing[#missing + 1], told[place] = KEYS[skipped + place], ''
  end
  sums[place] = sum
end
-- MGET does not show a value of another type.
spoilt = spoilt or #missing > 0 and redis.call('EXISTS', unpack(missing)) > 0

local marked = found[1] and count_of(found[1]) or 0

local function count_at(place)
  return sums[place] - sums[place - 1]
end

-- Adds units to a tick. INCRBY refuses leading zeros, and would count less than the units from
-- below 0.
local function add(place, units)
  local key, text = KEYS[skipped + place], found[place + 2]
  if units < 0 and count_at(place) + units == 0 then
    redis.call('DEL', key)
  elseif text and string.find(text, '^[-0]') then
    redis.call('SET', key, text_of('%.0f', count_at(place) + units), 'KEEPTTL')
  else
    redis.call('INCRBY', key, text_of('%.0f', units))
  end
end

-- Charges units to the tick of their instant, which lives from its start on as long as the longest
-- window counts it. Another program may have set no TTL. Another window may have set another one, of
-- which the longest stays.
local function charge_tick(units)
  local later = (now % tick + span - (now + span) % tick) / tick
  local place, life = here + later, kept + later * tick - now % tick
  add(place, units)
  local rest = found[place + 2] and redis.call('PTTL', KEYS[skipped + place]) or -1
  if rest < 0 or rest * 1000 + 1000 < life then
    redis.call('PEXPIRE', KEYS[skipped + place], text_of('%.0f', math.ceil(life / 1000)))
  end
end

local reply = {now, table.concat(told, ',')}
if marked > now then
  reply[3] = marked
end

