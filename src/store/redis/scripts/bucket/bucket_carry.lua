  -- Gives debts under other rates to the quotas that owe nothing. The core's `carried.rs` has the
  -- same functions and explains them.
  local function carry(found, columns, kinds)
    -- A conversion rounds up to parts of a unit.
    local PARTS, MOST_DEBT = 128, 4503599627370496

    local function is_faster(column, other)
      local rate, than = column.a / column.b, other.a / other.b
      if rate ~= than then
        return rate > than
      end
      return column.a > other.a or column.a == other.a and column.b < other.b
    end

    -- A tail that forgets all charges, but neither the line nor the numbers that the quota has given.
    -- `own` is the pair of the quota, if it has one.
    local function kept_line(tail, own)
      local mark, _, last, line = 0, 0, 0, 0
      if tail ~= '' then
        mark, _, last, line = struct.unpack('>I8I8I8I8', tail)
      end
      local is_kept = line > now
      if own and own[3] ~= '' and goes_on(0, own[3]) then
        local marked, _, numbered, place = struct.unpack('>I8I8I8I8', own[3])
        mark, last, line, is_kept = math.max(mark, marked), math.max(last, numbered), math.max(line, place), true
      end
      return is_kept and struct.pack('>I8I8I8I8I8I8I8', mark, last + 1, last, line, 0, 0, 0) or ''
    end

    -- A debt that its rate has repaid is carried last, and counts nothing.
    local function owes(column)
      return column.b > 0 and ends_at(column.a, nil, nil, nil, nil, column.first, column.second) > now
    end

    local function convert(quota, column)
      if not column then
        return
      end
      column.taken = true
      local till = ends_at(column.a, nil, nil, nil, nil, column.first, column.second)
      local rest = column.second % column.b
      local units, parts = (column.second - rest) / column.b, math.ceil(PARTS * rest / column.b)
      local debt = units * quota.b + math.ceil(parts * quota.b / PARTS)
      local tail = kept_line(column.tail, found[quota.q])
      if till <= now then
        found[quota.q] = {0, 0, tail, source = column}
      elseif debt > MOST_DEBT then
        found[quota.q] = {till, MOST_DEBT, tail, till, source = column}
      else
        found[quota.q] = {column.first, debt, tail, till, source = column}
      end
    end

    -- The fastest of those that are not taken.
    local function fastest(all, is_fit)
      local first
      for _, column in ipairs(all) do
        if not column.taken and is_fit(column) and (not first or is_faster(column, first)) then
          first = column
        end
      end
      return first
    end

    local function is_any()
      return true
    end

    -- Gives these debts to quotas, those of the same rate first.
    local function give(quotas_there, is_fit)
      for _, quota in ipairs(quotas_there) do
        for _, column in ipairs(columns) do
          -- The same rate, in finer or coarser fractions.
          local is_finer = column.a == PARTS * quota.a and column.b == PARTS * quota.b
          if not quota.taken and not column.taken and is_fit(column)
            and (is_finer or PARTS * column.a == quota.a and PARTS * column.b == quota.b) then
            quota.taken = true
            convert(quota, column)
          end
        end
      end
      local quota, column = fastest(quotas_there, is_any), fastest(columns, is_fit)
      while quota and column do
        quota.taken = true
        convert(quota, column)
        quota, column = fastest(quotas_there, is_any), fastest(columns, is_fit)
      end
    end

    local without_debt, without_pair = {}, {}
    for q, kind in ipairs(kinds) do
      local own = found[q] and found[q].source
      if not own or not owes(own) then
        without_debt[#without_debt + 1] = {q = q, a = kind[1], b = kind[2]}
      end
    end
    give(without_debt, owes)
    for _, quota in ipairs(without_debt) do
      without_pair[#without_pair + 1] = not found[quota.q] and quota or nil
    end
    give(without_pair, function(column)
      return column.b > 0
    end)
  end

