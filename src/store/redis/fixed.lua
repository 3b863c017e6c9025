-- Fixed window; for `hold.lua`, `once.lua` and what takes back; `pair_head.lua` says
-- how it is called, `fixed_check.lua` is the same for checks. The pair: the window's first instant, its count.
-- Parameters of a quota: length of a window, us; limit; 1 where windows begin at its multiples since the epoch, else 0
-- (with the first charge). By the calendar, which only the caller knows: the first instant of the window in which it
-- believes TIME to be; limit; the ends of that window and of the next one, with a blank between.
-- Reply {TIME} when TIME is in neither of the two: nothing was decided.

local calendar = {}
for q = 1, quotas do
  local edge, last = string.match(ARGV[3 * q + 1], '^(%d+) (%d+)$')
  if edge then
    calendar[q] = {parameter(q, 1), tonumber(edge), tonumber(last)}
    if now < calendar[q][1] or now >= calendar[q][3] then
      return {now}
    end
  end
end

-- The end of the window that began at `start`. Of one beyond those that are known, which a clock that stepped back
-- finds, it is not too early.
local function ending(q, start)
  local known = calendar[q]
  if not known then
    return start + parameter(q, 1)
  end
  for edge = 1, 3 do
    if start < known[edge] then
      return known[edge]
    end
  end
  return start + known[3] - known[1]
end

local function beginning(q)
  local known = calendar[q]
  if known then
    return now < known[2] and known[1] or known[2]
  end
  return parameter(q, 3) == 1 and now - now % parameter(q, 1) or now
end

local function current(q, start, count)
  if count > 0 and now < ending(q, start) then
    return start, count
  end
  return beginning(q), 0
end

local function left(q, start, count)
  local _, counted = current(q, start, count)
  return parameter(q, 2) - counted
end

local function charge(q, start, count, cost)
  local begun, counted = current(q, start, count)
  return begun, counted + cost, ending(q, begun) - now
end

local function goes_on(q, start, count)
  return count > 0 and now < ending(q, start)
end

