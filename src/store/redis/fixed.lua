-- Fixed window; `pair.lua` follows and says how it is called. The pair: the window's first instant, its count.
-- Parameters of a quota: length of a window, us; limit; 1 where windows begin at its multiples since the epoch, else 0
-- (with the first charge).

local function current(q, start, count)
  local window = parameter(q, 1)
  if count > 0 and now < start + window then
    return start, count
  end
  return parameter(q, 3) == 1 and now - now % window or now, 0
end

local function left(q, start, count)
  local _, counted = current(q, start, count)
  return parameter(q, 2) - counted
end

local function charge(q, start, count, cost)
  local begun, counted = current(q, start, count)
  return begun, counted + cost, begun + parameter(q, 1) - now
end

local function goes_on(q, start, count)
  return count > 0 and now < start + parameter(q, 1)
end

