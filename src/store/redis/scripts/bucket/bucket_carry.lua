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

    -- A tail that forgets all charges, but not the line.
    local function kept_line(tail)
      local mark, _, last, line = struct.unpack('>I8I8I8I8', tail)
      return line > now and struct.pack('>I8I8I8I8I8I8I8', mark, last + 1, last, line, 0, 0, 0) or ''
    end

    -- A debt that is paid belongs to no quota.
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
      local tail = column.tail ~= '' and kept_line(column.tail) or ''
      if debt > MOST_DEBT then
        found[quota.q] = {till, MOST_DEBT, tail, till, source = column}
      else
        found[quota.q] = {column.first, debt, tail, till, source = column}
      end
    end

    local left = {}

    -- The fastest of those that are not taken.
    local function fastest(all)
      local first
      for _, column in ipairs(all) do
        if not column.taken and (all == left or owes(column)) and (not first or is_faster(column, first)) then
          first = column
        end
      end
      return first
    end

    for q, kind in ipairs(kinds) do
      local own = found[q]
      local quota = not (own and owes(own.source)) and {q = q, a = kind[1], b = kind[2]}
      -- The same rate, in finer or coarser fractions.
      for _, column in ipairs(quota and columns or {}) do
        local is_finer = column.a == PARTS * quota.a and column.b == PARTS * quota.b
        if found[q] == own and not column.taken and owes(column)
          and (is_finer or PARTS * column.a == quota.a and PARTS * column.b == quota.b) then
          convert(quota, column)
        end
      end
      left[#left + 1] = found[q] == own and quota or nil
    end
    for _ = 1, #left do
      local quota = fastest(left)
      quota.taken = true
      convert(quota, fastest(columns))
    end
  end

