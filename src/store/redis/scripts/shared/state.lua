-- Every number stays below 2^53 (TIME is 1.8e15, limits and costs at most 1e15), where doubles are exact; so are a % b
-- and (a - a % b) / b, which is the quotient rounded down, for such a and b.

local EXACT = 9007199254740992

-- What a key lives longer than it matters, which spares the edge, us.
local EDGE = 1000000

-- How long a key lives that matters until then, ms.
local function life_until(instant, now)
  return string.format('%.0f', math.ceil((instant + EDGE - now) / 1000))
end

-- No state is longer: 32 columns of 129 wide sums have 34,121 bytes.
local MOST_BYTES = 65536

-- What is at a key: a String, false where there is nothing, or an error. A value that is no String, or too long a one,
-- is corrupt, as a String of no length is.
local function state_of(key)
  local state = redis.pcall('GET', key)
  if type(state) == 'table' then
    return string.sub(state.err, 1, 9) == 'WRONGTYPE' and '' or state
  end
  return state and #state <= MOST_BYTES and state or state and ''
end

