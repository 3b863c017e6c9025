-- The pairs of a key's quotas, for refunds and drains. It follows `pair_noted.lua`, which declares
-- `first`, `second`, `tail` and `left`. Checks have faster code for this.

local general, state_key = pairs_of_key(), KEYS[1]

-- For each quota its numbers, and the base of a charge: an instant and a number.
local number_of, from, counted, ours, quotas = {}, {}, {}, {}, 0

-- Reads the numbers of the quotas, which end at a place.
local function read_quotas(place)
  while at < place do
    local a, b, c, d, e, f
    a, b, c, d, e, f, at = read_at('<dddddd', numbers, at)
    quotas = quotas + 1
    number_of[quotas], ours[pack('>I8I8', a, b)] = {a, b, c, d, e, f}, true
  end
end

local function read_pairs(columns)
  for q, pair in ipairs(general.pairs_of(columns, number_of)) do
    local a, b, c, d, e, f = unpack(number_of[q])
    first[q], second[q], tail[q] = unpack(pair)
    left[q], from[q], counted[q] = standing(a, b, c, d, e, f, first[q], second[q])
  end
end

-- Writes the present state and returns it.
local function write_pairs(columns)
  local others, heads, rests, tails, lives = general.others(columns, ours, quotas)
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

