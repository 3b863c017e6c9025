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

    local function owes(column)
      return column.b > 0 and ends_at(column.a, nil, nil, nil, nil, column.first, column.second) > now
    end

    local function convert(quota, column)
      quota.taken, column.taken = true, true
      local till = ends_at(column.a, nil, nil, nil, nil, column.first, column.second)
      local rest = column.second % column.b
      local units, parts = (column.second - rest) / column.b, math.ceil(PARTS * rest / column.b)
      local debt = units * quota.b + math.ceil(parts * quota.b / PARTS)
      local tail = kept_line(column.tail, found[quota.q])
      if debt > MOST_DEBT then
        found[quota.q] = {till, MOST_DEBT, tail, till, source = column}
      else
        found[quota.q] = {column.first, debt, tail, till, source = column}
      end
    end

    -- The fastest of those that are not taken.
    local function fastest(all)
      local first
      for _, one in ipairs(all) do
        if not one.taken and (not first or is_faster(one, first)) then
          first = one
        end
      end
      return first
    end

    local free, debts = {}, {}
    for q, kind in ipairs(kinds) do
      local own = found[q] and found[q].source
      if not own or not owes(own) then
        free[#free + 1] = {q = q, a = kind[1], b = kind[2]}
      end
    end
    for _, column in ipairs(columns) do
      debts[#debts + 1] = not column.taken and owes(column) and column or nil
    end
    -- Those of the same rate first, in finer or coarser fractions.
    for _, quota in ipairs(free) do
      for _, debt in ipairs(debts) do
        local is_finer = debt.a == PARTS * quota.a and debt.b == PARTS * quota.b
        if not quota.taken and not debt.taken
          and (is_finer or PARTS * debt.a == quota.a and PARTS * debt.b == quota.b) then
          convert(quota, debt)
        end
      end
    end
    local quota, debt = fastest(free), fastest(debts)
    while quota and debt do
      convert(quota, debt)
      quota, debt = fastest(free), fastest(debts)
    end
  end
