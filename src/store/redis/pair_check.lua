-- The state of a quota is a pair of numbers, 16 bytes, big-endian; and where charges may be taken back, a tail of its
-- own.
--
-- What comes before this tells, of the five numbers of a quota (a to e),
--   standing(a, b, c, d, e, first, second)   what is left now; and what a charge is added to: an instant, a number
--   charge(a, b, c, d, e, instant, number, cost)   the pair after a charge, and how long it matters, us
--   goes_on(number, tail)   whether the tail still matters
--   is_spoilt(state)        whether somebody else wrote it
--
-- Keys of a check: for each quota its state.
-- Told of a check, one of
--   first, second of each quota    its state as it was before
--   {first, second of each quota, tail of each}
--                                  the same, where one has a tail

local EXACT = 9007199254740992

-- The numbers of a check, with its first run of costs.
local NUMBERS = '<dd'
-- each
  .. 'ddddd'
-- end each
  .. 'dd'

for _ = 1, checks do
  local keys, ends, cost, times
  -- each
  local a_q, b_q, c_q, d_q, e_q
  -- end each
  keys, ends,
  -- each
    a_q, b_q, c_q, d_q, e_q,
  -- end each
    cost, times, at = read_at(NUMBERS, numbers, at)
  local read = call('MGET', unpack(names, base + 1, base + keys))
  local failed, spoilt, tailed, room = false, false, false, math.huge
  if read.err then
    reply[#reply + 1], at, base = false, ends, base + keys
  else
    -- each
    base = base + 1
    local key_q, state_q, first_q, second_q, tail_q = names[base], read[_q], 0, 0, ''
    if state_q then
      if is_spoilt(state_q) then
        spoilt = true
      else
        first_q, second_q = read_at('>I8I8', state_q)
        spoilt = spoilt or first_q > EXACT or second_q > EXACT
        if #state_q > 16 then
          tail_q, tailed = string.sub(state_q, 17), true
        end
      end
    end
    local left_q, from_q, counted_q = standing(a_q, b_q, c_q, d_q, e_q, first_q, second_q)
    if left_q < room then
      room = left_q
    end
    -- end each

    -- Decide the costs in order; each is charged to all quotas or to none.
    local charged = 0
    while true do
      if cost > 0 then
        local left = room - charged
        local fit = (left - left % cost) / cost
        if fit > times then
          fit = times
        end
        if fit > 0 then
          charged = charged + fit * cost
        end
      end
      if at == ends then
        break
      end
      cost, times, at = read_at('<dd', numbers, at)
    end

    if charged > 0 and not spoilt then
      local first, second, life, wrote, written
      -- each
      if not failed then
        first, second, life = charge(a_q, b_q, c_q, d_q, e_q, from_q, counted_q, charged)
        local tail = tail_q ~= '' and goes_on(counted_q, tail_q) and tail_q or ''
        -- One second more than the state matters spares the edge.
        local ttl = text('%.0f', math.ceil(life / 1000) + 1000)
        wrote = call('SET', key_q, pack('>I8I8', first, second) .. tail, 'PX', ttl)
        if wrote.err then
          failed, spoilt = true, written
        end
        written = true
      end
      -- end each
    end

    if spoilt then
      reply[#reply + 1] = ''
    elseif failed then
      reply[#reply + 1] = false
    elseif tailed then
      local told = {}
      -- each
      told[#told + 1] = first_q
      told[#told + 1] = second_q
      -- end each
      -- each
      told[#told + 1] = tail_q
      -- end each
      reply[#reply + 1] = told
    else
      -- each
      reply[#reply + 1] = first_q
      reply[#reply + 1] = second_q
      -- end each
    end
  end
end
