-- The operations of `operation_head.lua` on fixed windows and token buckets. Checks have faster
-- code for the same. The algorithm's part follows.

local general, state_key = pairs_of_key(), KEYS[1]
local state_keys, changed = {state_key}, false

-- For each quota: its numbers; its pair and tail; and the base of a charge, an instant and a number.
-- A converted pair ends at the instant in `repaid_at`.
local number_of, first, second, tail, begun, counted, repaid_at = {}, {}, {}, {}, {}, {}, {}
at = at + 8
for q = 1, quotas do
  number_of[q] = {read_at('<dddddd', numbers, at)}
  at = table.remove(number_of[q])
  limit[q] = number_of[q][3]
end
local runs = runs_at(numbers, at)

local state = state_of(state_key)
if type(state) == 'table' then
  return state
end
local columns = {}
if state then
  columns = general.columns_of(state)
end
if not columns then
  if how ~= 'reset' then
    return {now, ''}
  end
  columns = {}
end

-- The String of the operation's quotas and of the columns from place `from` on; it lives until
-- `lives`, us, if no column lives longer. Returns it.
local function write(own_heads, own_rests, tails_there, lives)
  local others, heads, rests, tails, ends = general.others(columns, 1, #own_heads)
  if #own_heads + others == 0 then
    redis.call('DEL', state_key)
    return false
  end
  lives = math.max(lives, ends)
  local whole = pack('>I8B', math.min(lives + EDGE, EXACT), #own_heads + others) .. table.concat(own_heads) .. heads
    .. table.concat(own_rests) .. rests .. table.concat(tails_there) .. tails
  redis.call('SET', state_key, whole, 'PX', life_until(lives, now))
  return whole
end

-- sale
free_line = nil
-- end sale
-- hold
free_line = turn == 0 and free_line
-- end hold
if free_line and (over == 'wait' or leaving > 0) then
  local is_changed
  columns, is_changed = free_line(columns)
  state = is_changed and write({}, {}, {}, now) or not is_changed and state
  cost = freed > 0 and 0 or cost
end
-- One charge is taken back only from its own columns, never from debts of other rates.
local is_of_charge = undone or how == 'receipt' or how == 'lease'
local claimed = {}
-- Returns the numbers of a quota if it has a column.
local function with_column(numbers)
  for _, column in ipairs(numbers and columns or {}) do
    if not claimed[column] and column.a == numbers[1] and column.b == numbers[2] then
      claimed[column] = true
      return numbers
    end
  end
end
if undone then
  local of_policy = number_of
  number_of = undo_by_record(function(name, window, limit_then)
    local numbers = numbers_of(name, window, limit_then)
    for q, counter in ipairs(counters) do
      numbers = counter == name and of_policy[q] or numbers
    end
    return with_column(numbers)
  end)
elseif is_of_charge then
  local all, numbers_then, debts_then = {}, {}, {}
  for q = 1, quotas do
    if with_column(number_of[q]) then
      all[#all + 1], numbers_then[#all + 1], debts_then[#all + 1] = number_of[q], number[q], owed_then[q]
    end
  end
  number_of, number, owed_then, quotas = all, numbers_then, debts_then, #all
end
local sources = {}
for q, pair in ipairs(general.pairs_of(columns, number_of, is_of_charge)) do
  local a, b, c, d, e, f = unpack(number_of[q])
  first[q], second[q], tail[q], repaid_at[q] = pair[1], pair[2], pair[3], pair[4]
  sources[q] = pair.source
  room[q], begun[q], counted[q] = standing(a, b, c, d, e, f, first[q], second[q])
end
reply[2] = state or 0

local function ending(q)
  local a, b, _, d, e, f = unpack(number_of[q])
  return ends_at(a, b, d, e, f, first[q], second[q])
end

local function charge(parts)
  for q = 1, quotas do
    if parts[q] > 0 then
      first[q], second[q] = added(number_of[q][1], number_of[q][2], begun[q], counted[q], parts[q])
      if tail[q] ~= '' and not goes_on(counted[q], tail[q]) then
        tail[q] = ''
      end
    end
    room[q] = room[q] - parts[q]
  end
end

local function standing_after(q)
  return room[q], ending(q) - now
end

-- Writes the present state and returns it.
local function save()
  local own_heads, own_rests, lives = {}, {}, now
  for q = 1, quotas do
    own_heads[q] = pack('>I8I8', first[q], second[q])
    own_rests[q] = pack('>I8I8I2', number_of[q][1], number_of[q][2], #tail[q])
    lives = math.max(lives, ending(q))
  end
  return write(own_heads, own_rests, tail, lives)
end

local function add_states(states)
  states[3] = changed and save() or how ~= 'reset' and state or 0
end

