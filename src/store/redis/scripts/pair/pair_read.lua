-- Reads the state and its present counts.

local general = pairs_of_key()
local state_key = KEYS[1]
local state = state_of(state_key)
local columns = {}
if state then
  columns = type(state) == 'string' and general.columns_of(state)
end
local spoilt = not columns

-- For each quota: its numbers, pair and tail; the remaining units, and the base of a charge.
local number_of, first, second, tail = {}, {}, {}, {}
local left, from, counted, ours = {}, {}, {}, {}
for q = 1, quotas do
  local told = {}
  for place = 1, 6 do
    told[place] = tonumber(ARGV[6 * q - 3 + place])
  end
  number_of[q], ours[struct.pack('>I8I8', told[1], told[2])] = told, true
end
for q, pair in ipairs(general.pairs_of(columns or {}, number_of)) do
  local a, b, c, d, e, f = unpack(number_of[q])
  first[q], second[q], tail[q] = unpack(pair)
  left[q], from[q], counted[q] = standing(a, b, c, d, e, f, first[q], second[q])
end

-- Writes the present state and returns it.
local function write_pairs()
  local others, heads, rests, tails, lives = general.others(columns, ours, quotas)
  local own_heads, own_rests = {}, {}
  for q = 1, quotas do
    local a, b, _, d, e, f = unpack(number_of[q])
    own_heads[q] = struct.pack('>I8I8', first[q], second[q])
    own_rests[q] = struct.pack('>I8I8I2', a, b, #tail[q])
    lives = math.max(lives, ends_at(a, b, d, e, f, first[q], second[q]), now)
  end
  local whole = struct.pack('>I8B', math.min(lives + EDGE, EXACT), quotas + others) .. table.concat(own_heads) .. heads
    .. table.concat(own_rests) .. rests .. table.concat(tail) .. tails
  redis.call('SET', state_key, whole, 'PX', life_until(lives, now))
  return whole
end

