-- Every number stays below 2^53 (TIME is 1.8e15, limits and costs at most 1e15), where doubles are exact; so are a % b
-- and (a - a % b) / b, which is the quotient rounded down, for such a and b.

local EXACT = 9007199254740992

-- What a key lives longer than it matters, which spares the edge, us.
local EDGE = 1000000

-- How long a key lives that matters until then, ms.
local function life_until(instant, now)
  return string.format('%.0f', math.ceil((instant + EDGE - now) / 1000))
end

-- What is at a key: a String, false where there is nothing, or an error. What is no String is nobody's count, as one of
-- no length is.
local function state_of(key)
  local state = redis.pcall('GET', key)
  if type(state) == 'table' and string.sub(state.err, 1, 9) == 'WRONGTYPE' then
    return ''
  end
  return state
end

