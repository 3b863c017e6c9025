-- Refunds in fixed windows and token buckets. It follows `back_head.lua` and `head.lua`; `back.lua`
-- ends it. A reset also deletes corrupt values.

local general, state_key = pairs_of_key(), KEYS[1]
local state = state_of(state_key)
local columns = {}
if state then
  columns = type(state) == 'string' and general.columns_of(state)
end
if not columns and how ~= 'reset' then
  return {now, ''}
end

-- For each quota: its numbers, pair and tail; the remaining units, and the base of a charge.
local number_of, first, second, tail = {}, {}, {}, {}
local left, from, counted = {}, {}, {}
local quotas, ends = 0, nil
ends, at = read_at('<d', numbers, at)
while at < ends do
  local a, b, c, d, e, f
  a, b, c, d, e, f, at = read_at('<dddddd', numbers, at)
  local q = quotas + 1
  number_of[q], quotas = {a, b, c, d, e, f}, q
end
for q, pair in ipairs(general.pairs_of(columns or {}, number_of)) do
  local a, b, c, d, e, f = unpack(number_of[q])
  first[q], second[q], tail[q] = unpack(pair)
  left[q], from[q], counted[q] = standing(a, b, c, d, e, f, first[q], second[q])
end

local state_keys = {state_key}
local changed = false

-- Writes the present state and returns it.
local function write_pairs()
  local others, heads, rests, tails, lives = general.others(columns, 1, quotas)
  local own_heads, own_rests = {}, {}
  for q = 1, quotas do
    local a, b, _, d, e, f = unpack(number_of[q])
    own_heads[q] = pack('>I8I8', first[q], second[q])
    own_rests[q] = pack('>I8I8I2', a, b, #tail[q])
    lives = math.max(lives, ends_at(a, b, d, e, f, first[q], second[q]), now)
  end
  local whole = pack('>I8B', math.min(lives + EDGE, EXACT), quotas + others) .. table.concat(own_heads) .. heads
    .. table.concat(own_rests) .. rests .. table.concat(tail) .. tails
  redis.call('SET', state_key, whole, 'PX', life_until(lives, now))
  return whole
end

local function add_states(reply)
  reply[#reply + 1] = changed and write_pairs() or how ~= 'reset' and state or 0
end

