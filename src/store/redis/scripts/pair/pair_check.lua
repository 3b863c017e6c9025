-- Checks on the format of `pair_state.lua`. It follows `head.lua`, which describes the call.
--
-- Most checks find the columns of their quotas first, and a TTL that is long enough. They write the
-- pairs in place. Others write the whole string.
--
-- Numbers of a quota: a to f, which the algorithm's part defines.
--
-- Result of a check: the former state, or 0 without one.

-- The numbers of a check, with its first run of costs.
local NUMBERS = '<d'
-- each
  .. 'dddddd'
-- end each
  .. 'dd'

-- The pairs of the columns, and their other parts.
local PAIRS, RESTS = ''
-- each
  .. 'I8I8'
-- end each
  , ''
-- each
  .. 'I8I8I2'
-- end each

local STATE = '>I8B' .. PAIRS .. RESTS
PAIRS, RESTS = '>' .. PAIRS, '>' .. RESTS

local QUOTAS = 0
-- each
  + 1
-- end each

local general

for _ = 1, checks do
  local ends, cost, times
  -- each
  local a_q, b_q, c_q, d_q, e_q, f_q
  -- end each
  ends,
  -- each
    a_q, b_q, c_q, d_q, e_q, f_q,
  -- end each
    cost, times, at = read_at(NUMBERS, numbers, at)
  base = base + 1
  local key = names[base]
  local state = state_of(key)
  if type(state) == 'table' then
    if checks == 1 then
      return state
    end
    reply[#reply + 1], at = false, ends
  else
    -- each
    local first_q, second_q, tail_q = 0, 0, ''
    -- end each
    local usual, spoilt, till, count, columns = state ~= false, false, 0, QUOTAS, nil
    if state then
      local place
      -- each
      local one_q, two_q, length_q
      -- end each
      usual = #state >= HEADER + COLUMN * QUOTAS
      if usual then
        till, count,
        -- each
          first_q, second_q,
        -- end each
        -- each
          one_q, two_q, length_q,
        -- end each
          place = read_at(STATE, state)
        usual = count >= QUOTAS and #state >= HEADER + COLUMN * count and till <= EXACT
      end
      if usual then
        if count > QUOTAS then
          -- The pairs of other quotas are in between.
          -- each
          one_q, two_q, length_q,
          -- end each
            place = read_at(RESTS, state, HEADER + count * 16 + 1)
          place = HEADER + count * COLUMN + 1
        end
        -- each
        usual = usual and one_q == a_q and two_q == b_q and first_q <= EXACT and second_q <= EXACT
        if length_q > 0 then
          usual = usual and is_tail(length_q)
          tail_q = string.sub(state, place, place + length_q - 1)
          place = place + length_q
        end
        usual = usual and (not CARRIES or count == QUOTAS or ends_at(a_q, b_q, d_q, e_q, f_q, first_q, second_q) > now)
        -- end each
        usual = usual and (place == #state + 1 or count > QUOTAS and place <= #state + 1)
      end
      if not usual then
        general = general or pairs_of_key()
        columns = general.columns_of(state)
        spoilt = not columns
        if columns then
          local pairs_there = general.pairs_of(columns, {
            -- each
            {a_q, b_q},
            -- end each
          })
          -- each
          first_q, second_q, tail_q = unpack(pairs_there[_q])
          -- end each
        end
      end
    end

    local room, failed = math.huge, false
    -- each
    local left_q, from_q, counted_q = standing(a_q, b_q, c_q, d_q, e_q, f_q, first_q, second_q)
    if tail_q ~= '' and is_held(tail_q) then
      left_q = 0
    end
    if left_q < room then
      room = left_q
    end
    -- end each

-- decide

    if charged > 0 and not spoilt then
      local lives = 0
      -- each
      first_q, second_q = added(a_q, b_q, from_q, counted_q, charged)
      lives = math.max(lives, ends_at(a_q, b_q, d_q, e_q, f_q, first_q, second_q))
      if tail_q ~= '' and not goes_on(counted_q, tail_q) then
        tail_q, usual = '', false
      end
      -- end each
      local heads = pack(PAIRS
        -- each
        , first_q, second_q
        -- end each
      )
      if usual and lives + EDGE <= till then
        failed = call('SETRANGE', key, '9', heads) ~= #state
      else
        local others, pairs_there, rests, tails, ends = 0, '', '', '', 0
        if columns or count > QUOTAS then
          general = general or pairs_of_key()
          local from = columns and 1 or QUOTAS + 1
          others, pairs_there, rests, tails, ends = general.others(columns or general.columns_of(state) or {}, from, QUOTAS)
        end
        lives = math.max(lives + (state and spare(lives) or 0), ends)
        local whole = pack('>I8B', math.min(lives + EDGE, EXACT), QUOTAS + others) .. heads .. pairs_there .. pack(RESTS
          -- each
          , a_q, b_q, #tail_q
          -- end each
        ) .. rests
        -- each
          .. tail_q
        -- end each
          .. tails
        failed = call('SET', key, whole, 'PX', life_until(lives, now)).err ~= nil
      end
    end

    if spoilt then
      reply[#reply + 1] = ''
    elseif failed then
      reply[#reply + 1] = false
    else
      reply[#reply + 1] = state or 0
    end
  end
end
return reply
