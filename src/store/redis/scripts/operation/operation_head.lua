-- Begins the operations on one key that are rarer than checks. The algorithm's parts follow, and
-- `operation.lua` ends the script. These arguments follow those of the algorithm's part. The script
-- reads them from the end:
--
-- KEYS  ..., [the record of the id], [the instant of the last reset]
--       A reservation only names the last one. An undo needs it, so a slot that moves prevents both.
--
-- ARGV  ..., the arguments of the operation, number of quotas, the operation. These charge:
--       'charge'  [the most units in line, or -1; the longest wait, us,] over: 'deny' charges all
--                 quotas or none, 'drain' each as much as fits there, and 'wait' all or none, at the
--                 first instant within the longest wait
--       'hold'    us until which the charge may be undone, over
--       'once'    for each quota the name of its counter, its name, limit and window, us;
--                 TTL of the record, ms; 1 if a replica must acknowledge the answer, else 0; over
--       These take back:
--       'cost'    cost, from the oldest charge on
--       'receipt' instant, cost, number and debt in each quota: exactly this charge
--       'lease'   as for 'receipt'; instant of the decision, end of the mark: unspent units
--       'id'      name of each quota's counter: the charge of the record, once, in the counters
--                 that the record names
--       'reset'   TTL of the reset's instant, ms; the names of counters that are other logs, and
--                 their number
--       A script of its own sells leases to callers. It has 'once', with these before over: us by
--       which the charge is recorded later, 1 if the lease ends with its window, else 0, us for
--       which units may be spent, and us for which they may be returned. And it has 'id', with
--       the units that were spent, or -1 for all, before the names. Both have both keys.
--
-- Reply of those that charge: {TIME, the former states}, as that of a check.
--       'once' replies 'charged' or 'replayed' and the record, unless nothing was charged. A record
--       has the cost, the instant of the charge, and 1 if refunded. The reply has us until that
--       instant instead. For each quota the four arguments follow, the
--       remaining units, us until it is whole, and number and debt of the charge. A drain's record
--       ends with a list: for each quota the units that it took, and us until the cost would fit.
--       A sale replies as 'charge', with a list at the end: 'sold', units, us until they may not be
--       spent any more; the same with 'replayed'; or 'denied'. Its settle replies as the others,
--       with 'settled', units spent, units returned; the same with 'again';
--       'exceeded' and the units of the lease; 'expired'; 'reused'; or 'unknown'.
-- Reply of the others: {TIME, units refunded to the quota that received most, the states then}.
--
-- The algorithm's part reads the state. It returns {TIME, ''} if it is corrupt, except at a reset.
-- It fills or defines these:
--   limit, room, drains, slots  by quota: its limit; the units that fit; the units that a drain
--                               takes, if more; the charges that fit, if bounded
--   runs                        the costs in order, each with its repetitions `times`
--   reply                       TIME and the former states
--   charge(parts, allowed)      charges each quota its part, 0 or more: the allowed costs, or else
--                               one charge; returns a reply to refuse
--   note(q, till, start)        makes a charge refundable, and until `till`, us, unless 0, marks it;
--                               one that starts after now is the last place in line;
--                               returns its number and debt
--   place_in_line(cost, longest, queue)
--                               moves a charge to the first instant at which it fits; returns it.
--                               Only token buckets have it
--   save()                      writes the charged state
--   standing_after(q)           returns the remaining units, and us until the quota is whole
--   wait_of(q)                  returns us until the cost fits, which is within the limit
--   state_keys                  the keys with counts
--   take_back(q)                refunds up to `cost` units of a quota, and returns how many. With
--                               `undone`, the quotas are those of that record
--   add_states(reply)           adds the states after the refund
--   add_waits()                 adds the instants at which costs fit to the reply; only logs need it

local function argument()
  return table.remove(ARGV)
end

-- As many arguments, in order.
local function arguments(count)
  local list = {}
  for place = count, 1, -1 do
    list[place] = argument()
  end
  return list
end

-- hold
-- Whether a value is what a record has of its hold.
local function is_kept(own_hold)
  local is_list = type(own_hold) == 'table' and (#own_hold == 7 or #own_hold == 8) and type(own_hold[7]) == 'string'
  for place = 1, is_list and #own_hold or 0 do
    is_list = is_list and (place == 7 or type(own_hold[place]) == 'number')
  end
  return is_list
end

-- end hold
-- sale
-- Whether a value is what a record has of the lease: when it was sold, how long its units may be
-- spent, until when they may be returned, us; the units that were spent, or -1 before the settle,
-- and those that were returned.
local function is_kept(sale)
  local is_list = type(sale) == 'table' and #sale == 5
  for place = 1, is_list and 5 or 0 do
    is_list = is_list and type(sale[place]) == 'number'
  end
  return is_list
end

-- end sale
-- Whether a value is what the record of a place in line has: for each bucket a text, which is empty
-- or as `bucket_line.lua` writes it.
local function is_line(place, quotas)
  local is_list = type(place) == 'table' and #place == quotas
  for q = 1, is_list and quotas or 0 do
    is_list = is_list and type(place[q]) == 'string' and (place[q] == '' or #place[q] >= 32)
  end
  return is_list
end

-- When a charge was made, us. A place in line starts later, and the numbers of its record tell.
local function charged_at(record, start)
  for r = 4, record and #record or 0, 8 do
    start = record[r + 6] > 0 and math.min(start, record[r + 6]) or start
  end
  return start
end

-- The record of an id; nil without one. The list that ends a drain's record is returned separately,
-- and so are what the record has of its hold or its lease, and of its place in line. A corrupt
-- record ends the call before any write.
local function record_of(key)
  local written = redis.pcall('GET', key)
  if type(written) == 'table' and string.sub(written.err, 1, 9) ~= 'WRONGTYPE' then
    written = redis.call('GET', key)
  end
  if not written then
    return nil
  end
  local is_read, record, own, place = pcall(cmsgpack.unpack, written)
  local is_record = is_read and type(record) == 'table'
  local drained = is_record and type(record[#record]) == 'table' and table.remove(record) or nil
  is_record = is_record and #record >= 3 and (#record - 3) % 8 == 0
  for place = 1, is_record and #record or 0 do
    local is_name = place > 3 and (place - 4) % 8 < 2
    is_record = is_record and type(record[place]) == (is_name and 'string' or 'number')
  end
  for place = 1, is_record and drained and (#record - 3) / 4 or 0 do
    is_record = is_record and type(drained[place]) == 'number'
  end
-- hold
  is_record = is_record and (not own or is_kept(own))
-- end hold
-- sale
  is_record = is_record and not drained and is_kept(own)
-- end sale
  is_record = is_record and (not place or is_line(place, (#record - 3) / 8))
  if not is_record then
    error('foreign record')
  end
  return record, drained, own or nil, place
end

-- A record as it is written.
local function packed(record, own, place)
  if place then
    return cmsgpack.pack(record, own or false, place)
  end
  return own and cmsgpack.pack(record, own) or cmsgpack.pack(record)
end

-- TIME, or in tests its substitute, before the algorithm's part has read it.
local function time_of_call()
  local time, _, _, substitute = redis.call('TIME'), struct.unpack('<ddd', ARGV[1])
  return substitute > 0 and substitute or time[1] * 1000000 + time[2]
end

local how, quotas = argument(), tonumber(argument())
local is_charge = how == 'charge' or how == 'hold' or how == 'once'
-- plain
local reset_key = (how == 'hold' or not is_charge) and table.remove(KEYS)
local record_key, record, drained, own_hold, place = (how == 'once' or how == 'id') and table.remove(KEYS), nil, nil, nil, nil
-- The beginning of the names of the policy's keys and of records, and the id as it follows.
local policy_base = string.match(record_key or KEYS[1], '^{[^}]*}[^:]*:') or ''
local prefix = policy_base .. 'id:'
local id = record_key and string.sub(record_key, #prefix + 1)
if record_key then
  record, drained, own_hold, place = record_of(record_key)
end
-- end plain
-- hold
local held_key, prefix = table.remove(KEYS), argument()
local policy_base = string.sub(prefix, 1, -4)
local release, most_open, ttl = argument() == 'release', tonumber(argument()), tonumber(argument())
local test_now, durable, asked, meta = tonumber(argument()), argument() == '1', argument(), argument()
local counters = arguments(quotas)
local reset_key, record_key, record, drained, own_hold, place = table.remove(KEYS), nil, nil, nil, nil, nil
if how == 'once' or how == 'id' or how == 'renew' then
  record_key = table.remove(KEYS)
  record, drained, own_hold, place = record_of(record_key)
end
-- end hold
-- sale
local reset_key, record_key = table.remove(KEYS), table.remove(KEYS)
local record, drained, sale = record_of(record_key)
local policy_base = string.match(record_key, '^{[^}]*}[^:]*:')
-- end sale

-- A charge has the time in which it may be undone, us, and what its record has of each quota.
local over, hold, about = is_charge and argument(), 0, nil
-- A check that waits has its longest wait, us, and the most units in line.
local longest, queue
if over == 'wait' then
  longest, queue = tonumber(argument()), tonumber(argument())
end
-- The TTL of what is written beside the state, ms; and for a reset, the names of other logs.
local life, other_logs = nil, {}
-- A refund has the cost, and the instant of the charge. By quota, number and debt of the charge, and
-- the units that a drain took. For a lease: when it was decided, and until when returns count.
local cost, made, number, owed_then, parts, decided, till = 0, nil, {}, {}, {}, nil, nil
-- The units of a charge that stay when a settle gives back a part of it. They were repaid first.
local stays = 0
-- plain
local counters
-- end plain
-- sale
local counters
-- end sale
-- The record whose charge the operation takes back. Its counters are those that `take_back` changes.
local undone, undone_parts
-- The units of a place in line that leaves, and of it as far as it is free.
local leaving, freed = 0, 0

-- sale
-- How long units may be returned, spent, and how much later the charge is recorded, us. Some leases
-- end with their window. A settle has the units that were spent, or -1 for all.
local lasts, ends, later, spent
if how == 'once' then
  hold, lasts, ends, later = tonumber(argument()), tonumber(argument()), argument() == '1', tonumber(argument())
end
-- end sale
if how == 'hold' then
  hold = tonumber(argument())
elseif how == 'once' then
  local is_durable = argument() == '1'
  life, about = argument(), arguments(4 * quotas)
  if record then
    if is_durable then
      -- WAIT covers only writes of this connection. Another one may have written the record.
      redis.call('PEXPIRE', record_key, math.max(1, redis.call('PTTL', record_key)))
    end
-- plain
    record[#record + 1] = drained
    record[2] = over == 'wait' and math.max(0, record[2] - time_of_call()) or 0
    table.insert(record, 1, 'replayed')
    return record
-- end plain
  end
elseif how == 'reset' then
  other_logs = arguments(tonumber(argument()))
  life = argument()
elseif how == 'cost' then
  cost = tonumber(argument())
elseif how == 'receipt' or how == 'lease' then
  if how == 'lease' then
    till, decided = tonumber(argument()), tonumber(argument())
  end
  local entries = arguments(2 * quotas)
  for q = 1, quotas do
    number[q], owed_then[q] = tonumber(entries[2 * q - 1]), tonumber(entries[2 * q])
  end
  cost, made = tonumber(argument()), tonumber(argument())
elseif how == 'id' then
  counters = arguments(quotas)
  if record and record[3] == 0 then
    cost, made, undone, undone_parts = record[1], record[2], record, drained
  end
-- sale
  spent, decided = tonumber(argument()), sale and sale[1]
-- end sale
end

local reset = made and redis.call('GET', reset_key)
if reset and (decided or charged_at(undone, made)) <= tonumber(reset) then
  cost = 0
end

undone = cost > 0 and undone or nil
-- plain
leaving = undone and place and cost or 0
-- end plain

local limit, room, drains, slots, add_waits = {}, {}, {}, {}, nil

-- Makes the counters of the undone record the quotas of the operation. `numbers_of(name, window,
-- limit)` returns what the algorithm's part has of a quota, or nil if the counter is not one of its.
-- Returns these by quota.
local function undo_by_record(numbers_of)
  local all = {}
  number, owed_then, parts = {}, {}, {}
  for r = 4, #undone, 8 do
    local q, numbers = #all + 1, numbers_of(undone[r], undone[r + 3], undone[r + 2])
    if numbers then
      all[q], number[q], owed_then[q] = numbers, undone[r + 6], undone[r + 7]
      parts[q] = undone_parts and undone_parts[(r - 4) / 4 + 1]
    end
  end
  quotas = #all
  return all
end

-- The costs from a place of the packed numbers on.
local function runs_at(numbers, at)
  local runs = {}
  while at <= #numbers do
    local run = {}
    run.cost, run.times, at = struct.unpack('<dd', numbers, at)
    runs[#runs + 1] = run
  end
  return runs
end

