-- Every number stays below 2^53, where doubles are exact: TIME is 1.8e15, limits and costs at most
-- 1e15. So a % b is exact, and so is the rounded quotient (a - a % b) / b.

local EXACT = 9007199254740992

-- Extra life of a key beyond its last use, us. It covers the edge.
local EDGE = 1000000

-- The TTL of a key that counts until `instant`, ms.
local function life_until(instant, now)
  return string.format('%.0f', math.ceil((instant + EDGE - now) / 1000))
end

-- The longest state: 32 columns of 129 wide sums have 34,121 bytes.
local MOST_BYTES = 65536

-- The value of a key: a String, false without one, or an error. An empty String stands for a value
-- that is no String or too long, since both are corrupt.
local function state_of(key)
  local state = redis.pcall('GET', key)
  if type(state) == 'table' then
    return string.sub(state.err, 1, 9) == 'WRONGTYPE' and '' or state
  end
  return state and #state <= MOST_BYTES and state or state and ''
end

