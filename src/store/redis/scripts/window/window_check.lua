-- Checks of sliding windows in the format of `window_state.lua`. It follows `head.lua`, which
-- describes the call.
--
-- Most checks find the columns of their quotas first, and no clock that stepped back. They write in
-- place: one command for all columns, one or two for the sums of each quota with an ended step.
-- Without room one command writes all. Other checks read and write all columns.
--
-- The part between `ahead` and `end ahead` is for policies with leases. Before its quotas a check
-- then has two numbers more. `span` is how long after TIME its charges are recorded, us. So
-- `step_q`, which is charged, may be later than the one of TIME. `cut_q` is the last step that
-- does not count. `hold` is how long units may be returned, us, or 0.
--
-- Numbers of a quota: length of a step, us; limit; kind.
--
-- Result of a check, one of these:
--   counted ...            The former count of each quota. Every cost was allowed, and each fits
--                          once more.
--   {counted ..., state}   The same with the former state, false without one. A cost was denied, is
--                          0, or would now be denied, or a clock stepped back.

-- The numbers of a check, with its first run of costs.
local NUMBERS = '<d'
-- ahead
  .. 'dd'
-- end ahead
-- each
  .. 'ddd'
-- end each
  .. 'dd'

local HEADS = '>'
-- each
  .. 'I8I8I8I8I2'
-- end each

local STATE = '>I8B' .. HEADS

local QUOTAS = 0
-- each
  + 1
-- end each

local NEW = pack('>I8B', 0, QUOTAS)

local window

for _ = 1, checks do
  local ends, cost, times
  -- ahead
  local span, hold
  -- end ahead
  -- each
  local length_q, limit_q, kind_q
  -- end each
  ends,
  -- ahead
    span, hold,
  -- end ahead
  -- each
    length_q, limit_q, kind_q,
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
    local step_q = (now - now % length_q) / length_q
    local cut_q = step_q - 65
    -- ahead
    step_q = (now + span - (now + span) % length_q) / length_q
    -- end ahead
    local format_q, width_q, modulus_q = '>I4', 4, 4294967296
    if kind_q % 2 == 1 then
      format_q, width_q, modulus_q = '>I8', 8, 4503599627370496
    end
    local first_q, last_q, total_q, places_q = step_q, step_q, 0, 0
    local sums_q, ended_q, counted_q = 0, 0, 0
    -- end each

    -- `usual`: the state permits a write in place. `sums_q`: start of its sums. `ended_q`:
    -- steps ended since its last charge. `grows`: some sums lack room. `turned`: a segment has
    -- ended.
    local usual, grows, turned = true, false, false
    if state then
      usual = #state >= HEADER + COLUMN * QUOTAS
      if usual then
        local mark, count, place
        -- each
        local found_q
        -- end each
        mark, count,
        -- each
          found_q, first_q, last_q, total_q, places_q,
        -- end each
          place = read_at(STATE, state)
        place = place + (count - QUOTAS) * COLUMN
        -- each
        sums_q, place, ended_q = place, place + places_q * width_q, step_q - last_q
        usual = usual and found_q == kind_q and ended_q >= 0 and first_q <= last_q and total_q < modulus_q
          and (places_q == KEPT or places_q < KEPT and last_q - first_q <= places_q)
        grows = grows or places_q < KEPT and ended_q <= 128 and step_q - first_q > places_q
        turned = turned or step_q % 64 < ended_q
        -- end each
        -- Columns of other quotas follow, and may live longer.
        usual = usual and mark <= EXACT and (count == QUOTAS and place == #state + 1
          or count > QUOTAS and place <= #state + 1 and not grows and not turned)
      end
    end

    local spoilt, stepped, room, columns, before, marked = false, false, math.huge, nil, nil, nil
    if usual then
      -- each
      if last_q > cut_q then
        counted_q = total_q
        if cut_q >= first_q then
          counted_q = (total_q - read_at(format_q, state, sums_q + (cut_q - first_q) % KEPT * width_q)) % modulus_q
        end
      end
      -- end each
    else
      window = window or windows()
      columns, before, marked = window.columns_of(state)
      spoilt = not columns
      if columns then
        -- each
        columns[kind_q] = window.own_column(columns, kind_q, cut_q + 65)
        counted_q = window.counted_at(columns[kind_q], cut_q + 65)
        stepped = stepped or columns[kind_q] ~= nil and columns[kind_q].last > step_q
        -- end each
      end
    end
    -- each
    if limit_q - counted_q < room then
      room = limit_q - counted_q
    end
    -- end each

-- decide
    local tell = stepped or peeks or charged + dearest > room

    local failed = false
    if charged > 0 and usual then
      -- An ended segment extends the key's life, unless a longer window already does.
      local old_end, new_end = 0, 0
      if turned or grows or not state then
        -- each
        old_end = math.max(old_end, (last_q - last_q % 64 + 128) * length_q)
        new_end = math.max(new_end, (step_q - step_q % 64 + 128) * length_q)
        -- end each
      end

      local from, over
      -- each
      local own_q = ''
      from = (last_q - first_q) % KEPT
      if ended_q > 128 then
        first_q, total_q = step_q, 0
        if grows then
          places_q = 0
        end
      elseif grows then
        window = window or windows()
        own_q = string.sub(state, sums_q, sums_q + places_q * width_q - 1)
        own_q, places_q = window.filled(own_q, places_q, from, ended_q, pack(format_q, total_q))
      elseif ended_q > 0 and not failed then
        over = from + ended_q > KEPT and from + ended_q - KEPT or 0
        failed = call('SETRANGE', key, text('%d', sums_q + from * width_q - 1),
          string.rep(pack(format_q, total_q), ended_q - over)) ~= #state
        if over > 0 and not failed then
          failed = call('SETRANGE', key, text('%d', sums_q - 1), string.rep(pack(format_q, total_q), over)) ~= #state
        end
      end
      -- end each
      if not failed then
        local heads = pack(HEADS
          -- each
          , kind_q, first_q, step_q, (total_q + charged) % modulus_q, places_q
          -- end each
        )
        if not state or grows then
          local mark = state and string.sub(state, 1, HEADER) or NEW
          local all = mark .. heads
          -- each
            .. own_q
          -- end each
          failed = call('SET', key, all, 'PX', life_until(new_end, now)).err ~= nil
        else
          failed = call('SETRANGE', key, '9', heads) ~= #state
          if new_end > old_end then
            call('PEXPIRE', key, life_until(new_end, now))
          end
        end
      end
    elseif charged > 0 and not spoilt then
      local kinds = {}
      -- each
      kinds[_q] = kind_q
      columns[kind_q] = window.charged_in(columns[kind_q], kind_q, step_q, charged)
      -- end each
      failed = window.write(call, key, now, marked, kinds, before, columns).err ~= nil
    end
    -- ahead
    if hold > 0 and charged > 0 and not spoilt then
      local marked = read_at('>I8', call('GETRANGE', key, '0', '7'))
      call('SETRANGE', key, '0', pack('>I8', math.max(marked, now + hold)))
    end
    -- end ahead

    if spoilt then
      reply[#reply + 1] = ''
    elseif failed then
      reply[#reply + 1] = false
    elseif tell then
      tell = {}
      -- each
      tell[_q] = counted_q
      -- end each
      tell[#tell + 1] = state
      reply[#reply + 1] = tell
    else
      -- each
      reply[#reply + 1] = counted_q
      -- end each
    end
  end
end
return reply
