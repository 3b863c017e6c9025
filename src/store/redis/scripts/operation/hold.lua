-- Holds: records of ids that are open, and the places that they occupy. This part follows
-- `operation_head.lua`. It removes expired holds, and gives their charges back if the policy
-- releases them. Then it prepares the operation, or answers it.
--
-- The places of a key are a sorted set: the id of each open hold as its record's name ends, scored
-- by its expiry, us. The empty member has the negative of the latest instant that the key has seen,
-- so it is the first. A call notes it if it finds an expired hold, opens one or extends one. Expired
-- holds stay until a call removes them, and count no more.
--
-- A record of a hold has a second list: its expiry; 0 while it is open, 1 if it was settled, 2 if
-- its charge was given back; how long the record lives after its end, ms; the charge, the refund and
-- the rest of the settle; the meta of the check; 1 if its expiry gives the charge back, else 0.
-- Former versions had no last number: the policy in force counts.
--
-- KEYS  ..., [the record of the id], the instant of the last reset, the places
--
-- ARGV  ..., the arguments of the operation, the name of each quota's counter, the meta of the
--       check, the cost to settle (`all`: as charged, `refund`: a refund by id, `undo`: a refund
--       that also forgets the id, else empty), 1 if a replica must acknowledge the answer, 0 or in
--       tests a substitute for TIME, us; time to live of a hold, us; the most open holds or 0;
--       `charge` or `release` at the expiry; the beginning of the names of records; number of
--       quotas, the operation. Beside the others there are:
--       'renew'   extends the hold of the id
--       'holds'   lists the open holds that expire last
--
-- Reply as that of `operation_head.lua`, with a list at the end: the open holds; us until a place
--       is free or 0; us until the last hold expires, or 0 where it does not matter; 1 if expired
--       holds are left to give back, else 0; the holds that this call removed; the id's hold, as
--       `open`, `settled`, `expired`, `released`, `reset` or empty; us until it expires. A settle
--       adds its result, a word or empty, then the charge, the refund, the rest; the cost that it
--       drained; and how long the hold lived, us. The word is `late` after the end of the hold.
--       'renew' replies {TIME, state of the hold, us until it expires}.
--       'holds' replies {TIME, the open holds, then for each: id, us until it expires, cost, us
--       since its charge, meta}.

local SWEPT, LISTED = 16, 100

-- Most keys have a hold at most, and few have expired ones.
local FEW = 2

local function exact(number)
  return string.format('%.0f', number)
end

-- The algorithm's part takes this instant as TIME.
local called_at = test_now
if called_at == 0 then
  local time = redis.call('TIME')
  called_at = time[1] * 1000000 + time[2]
end
local held_at = called_at

-- The holds that expire first. Members alternate with scores.
local soonest, begin = redis.call('ZRANGE', held_key, '0', exact(FEW), 'WITHSCORES'), 1
if soonest[1] == '' then
  held_at, begin = math.max(held_at, -soonest[2]), 3
end
local has_all = #soonest < 2 * FEW + 2
if not has_all and tonumber(soonest[begin + 1]) <= held_at then
  soonest = redis.call('ZRANGE', held_key, '0', exact(SWEPT), 'WITHSCORES')
  has_all = #soonest < 2 * SWEPT + 2
end

-- The id as in the places, and whether it has one.
local id = record_key and string.sub(record_key, #prefix + 1)

-- Whether the expiry of a hold gives its charge back.
local function releases(kept)
  return kept[8] == 1 or not kept[8] and release
end

local expired, has_place = {}, false
for place = begin, #soonest, 2 do
  if tonumber(soonest[place + 1]) <= held_at and #expired < SWEPT then
    expired[#expired + 1] = soonest[place]
  end
  has_place = has_place or soonest[place] == id
end
local held = (#soonest - begin + 1) / 2
if not has_all then
  held = redis.call('ZCARD', held_key) - (begin - 1) / 2
  has_place = has_place or own_hold and redis.call('ZSCORE', held_key, id)
end
if ttl == 0 then
  -- The policy has no holds, so nothing ends here.
  expired = {}
end
local in_flight = held - #expired
if #expired == SWEPT and in_flight > 0 then
  in_flight = redis.call('ZCOUNT', held_key, '(' .. exact(held_at), '+inf')
end
local is_unswept = release and held > in_flight + #expired
local ended = #expired
if ended > 0 then
  redis.call('ZADD', held_key, exact(-held_at), '')
end

-- The time until the holds are fewer than the places.
local wait = 0
if most_open > 0 and in_flight >= most_open then
  local rank = exact((begin - 1) / 2 + held - most_open)
  wait = redis.call('ZRANGE', held_key, rank, rank, 'WITHSCORES')[2] - held_at
end
local lacks_place = wait > 0 and how == 'once' and over ~= 'drain'

-- The state of the id's hold.
local own = own_hold and own_hold[2] == 1 and 'settled' or own_hold and own_hold[2] == 2 and 'released' or ''
if own_hold and own_hold[2] == 0 then
  -- A reset clears the places, so a hold that has one was opened after it, whatever the clock says.
  local seen = not has_place and own_hold[1] <= held_at and redis.call('GET', reset_key)
  if own_hold[1] > held_at then
    own = has_place and 'open' or 'reset'
  elseif seen and charged_at(record, record[2]) <= tonumber(seen) then
    own = 'reset'
  else
    own = releases(own_hold) and 'released' or 'expired'
  end
end

-- The result of a settle, the cost that it drains, and how long the hold lived.
local result, drain_of, lived = {'', 0, 0, 0}, 0, 0

-- The expired holds that this call removes without a refund.
local gone = {}

local function add_places(reply)
  if #gone > 0 then
    redis.call('ZREM', held_key, unpack(gone))
  end
  local shows_last = #counters == 0 or wait > 0
  local last = shows_last and redis.call('ZREVRANGE', held_key, '0', '0', 'WITHSCORES')[2]
  reply[#reply + 1] = {
    in_flight, wait, last and math.max(0, last - held_at) or 0, is_unswept and 1 or 0, ended, own,
    own == 'open' and own_hold[1] - held_at or 0, result[1], result[2], result[3], result[4], drain_of, lived,
  }
end

-- Writes the id's record, which lives for `life`, ms, from the end of its hold on.
local function keep(record, own_hold, life)
  local left = own_hold and own_hold[2] == 0 and math.max(0, own_hold[1] - held_at) / 1000 or 0
  redis.call('SET', record_key, packed(record, own_hold, place), 'PX', exact(math.ceil(left + life)))
end

-- Writes the expiry of the id's hold to the places. They live as long as the last hold, and where an
-- expired one gives its charge back, as long as its record: until then a call finds it.
local function occupy()
  redis.call('ZADD', held_key, exact(-held_at), '', exact(own_hold[1]), id)
  local last = has_all and soonest[#soonest] or redis.call('ZREVRANGE', held_key, '0', '0', 'WITHSCORES')[2]
  last = math.max(last or 0, own_hold[1])
  local lives = (last - held_at) / 1000 + 1000
  if releases(own_hold) then
    lives = math.max(lives, (own_hold[1] - held_at) / 1000 + own_hold[3])
  end
  if #soonest > 0 then
    lives = math.max(lives, redis.call('PTTL', held_key))
  end
  redis.call('PEXPIRE', held_key, exact(math.ceil(lives)))
end

if how == 'holds' then
  local reply, last = {held_at, in_flight}, redis.call('ZREVRANGE', held_key, '0', exact(LISTED - 1), 'WITHSCORES')
  for place = 1, #last, 2 do
    local is_read, listed, _, part = pcall(record_of, prefix .. last[place])
    if is_read and part and tonumber(last[place + 1]) > held_at then
      reply[#reply + 1], reply[#reply + 2] = last[place], last[place + 1] - held_at
      reply[#reply + 1], reply[#reply + 2] = listed[1], math.max(0, held_at - listed[2])
      reply[#reply + 1] = part[7]
    end
  end
  return reply
end

if record and durable then
  -- WAIT covers only writes of this connection. Another one may have written the record.
  redis.call('PEXPIRE', record_key, math.max(1, redis.call('PTTL', record_key)))
end
if how == 'once' and record then
  record[#record + 1] = drained
  record[2] = over == 'wait' and math.max(0, record[2] - called_at) or 0
  table.insert(record, 1, 'replayed')
  ended, is_unswept = 0, false
  add_places(record)
  return record
end
if how == 'renew' then
  if own == 'open' then
    own_hold[1] = math.max(own_hold[1], held_at + ttl)
    occupy()
    keep(record, own_hold, own_hold[3])
  end
  return {held_at, own, own == 'open' and own_hold[1] - held_at or 0}
end

-- The expired holds whose charges this call gives back, each in a turn before the operation. A reset
-- drops them with the counts.
local due = {}

for _, member in ipairs(expired) do
  local hold = {member = member}
  local is_undone = asked == 'undo' and member == id
  if member == id and not is_undone then
    hold.record, hold.kept, hold.place = record, own_hold, place
  elseif how ~= 'reset' and not is_undone then
    local is_read, found, _, part, waits = pcall(record_of, prefix .. member)
    if not is_read and not string.find(tostring(found), 'foreign record', 1, true) then
      error(found)
    end
    if is_read then
      hold.record, hold.kept, hold.place = found, part, waits
    end
  end
  if how ~= 'reset' and hold.record and hold.kept and hold.kept[2] == 0 and releases(hold.kept) then
    due[#due + 1] = hold
  else
    gone[#gone + 1] = member
  end
end

-- A settle gives back the difference, or drains it. After a release it drains the whole cost.
local settles = how == 'id' and asked ~= 'undo' and (own_hold or asked ~= 'refund')
if settles then
  local charge = record and record[1] or 0
  local wanted = asked == 'all' and charge or asked == 'refund' and 0 or tonumber(asked)
  local is_forgotten = cost == 0
  cost = 0
  if not own_hold then
    result[1] = 'unknown_id'
  elseif own == 'settled' then
    if asked ~= 'all' and wanted ~= own_hold[4] + own_hold[6] then
      return {'reused'}
    end
    result = {'replayed', own_hold[4], own_hold[5], own_hold[6]}
  elseif own == 'reset' then
    result[1] = 'late'
  elseif own == 'released' then
    result[1], drain_of = 'settled', wanted
    if own_hold[2] == 0 and not is_forgotten then
      local is_due = false
      for _, hold in ipairs(due) do
        is_due = is_due or hold.member == id
      end
      due[#due + 1] = not is_due and {member = id, record = record, kept = own_hold, place = place} or nil
    end
  else
    result[1], result[2] = 'settled', math.min(wanted, charge)
    cost, drain_of = is_forgotten and 0 or math.max(0, charge - wanted), math.max(0, wanted - charge)
    stays = math.min(wanted, charge)
  end
end
if place and cost > 0 and stays == 0 then
  leaving = cost
end
undone = cost > 0 and undone or nil

-- Notes the end of the id's hold, after a take-back of `given` or a charge of `taken` units; or the
-- release of another one.
local turn
local function settle(given, taken)
  if turn > 0 then
    local hold = due[turn]
    hold.record[3], hold.kept[2] = 1, 2
    redis.call('SET', prefix .. hold.member, packed(hold.record, hold.kept, hold.place), 'KEEPTTL')
    redis.call('ZREM', held_key, hold.member)
  elseif result[1] == 'settled' then
    local charged = result[2] + taken
    local rest = drain_of > 0 and drain_of - taken or 0
    lived = math.max(0, held_at - record[2])
    result = {own == 'open' and 'settled' or 'late', charged, given, rest}
    record[3] = charged + rest == 0 and 1 or 2
    own_hold[2], own_hold[4], own_hold[5], own_hold[6] = 1, charged, given, rest
    keep(record, own_hold, own_hold[3])
    in_flight = own == 'open' and in_flight - 1 or in_flight
    own = 'settled'
    redis.call('ZREM', held_key, id)
  elseif asked == 'undo' and record and record[3] == 0 then
    redis.call('DEL', record_key)
    redis.call('ZREM', held_key, id)
    in_flight, own = own == 'open' and in_flight - 1 or in_flight, ''
  elseif how == 'id' and not settles and record and record[3] == 0 then
    record[3] = 1
    record[#record + 1] = drained
    redis.call('SET', record_key, packed(record, own_hold, place), 'KEEPTTL')
  end
end

local operation = {is_charge, cost, made, number, owed_then, parts, stays, undone, undone_parts}
for left = #due, 0, -1 do
turn = left
is_charge, cost, made, number, owed_then, parts, stays, undone, undone_parts = unpack(operation, 1, 9)
quotas = #counters
if turn > 0 then
  local released = due[turn].record
  is_charge, cost, made, number, owed_then, parts, stays = false, released[1], released[2], {}, {}, {}, 0
  undone, undone_parts = released, nil
  local seen = redis.call('GET', reset_key)
  cost = seen and charged_at(released, made) <= tonumber(seen) and 0 or cost
end

