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
for q, pair in ipairs(general.pairs_of(columns, number_of)) do
  local a, b, c, d, e, f = unpack(number_of[q])
  first[q], second[q], tail[q], repaid_at[q] = unpack(pair)
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
  local others, heads, rests, tails, lives = general.others(columns, 1, quotas)
  local own_heads, own_rests = {}, {}
  for q = 1, quotas do
    own_heads[q] = pack('>I8I8', first[q], second[q])
    own_rests[q] = pack('>I8I8I2', number_of[q][1], number_of[q][2], #tail[q])
    lives = math.max(lives, ending(q), now)
  end
  local whole = pack('>I8B', math.min(lives + EDGE, EXACT), quotas + others) .. table.concat(own_heads) .. heads
    .. table.concat(own_rests) .. rests .. table.concat(tail) .. tails
  redis.call('SET', state_key, whole, 'PX', life_until(lives, now))
  return whole
end

local function add_states(states)
  states[3] = changed and save() or how ~= 'reset' and state or 0
end

